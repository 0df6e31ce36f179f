# %% a small diffusion model: a U-Net learns the noise, then DDPM, DDIM and DPM-Solver draw
# needs: diffusers
import torch
from diffusers import DDIMScheduler, DDPMPipeline, DDPMScheduler, DPMSolverMultistepScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from torch.nn import functional as F

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
widths, size, batch, steps = ((64, 128), 32, 8, 60) if device == "cuda" else ((8, 16), 16, 2, 24)
unet = UNet2DModel(
    sample_size=size,
    layers_per_block=1,
    block_out_channels=widths,
    norm_num_groups=4,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
).to(device)
scheduler = DDPMScheduler(num_train_timesteps=100)
optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-3)
warmup = get_cosine_schedule_with_warmup(optimizer, 5, 10 * steps)
images = torch.rand(steps, batch, 3, size, size) * 2 - 1
log, drawn = [], []

# %%grape
unet.train()
for clean in images:
    clean = clean.to(device)
    noise = torch.randn_like(clean)
    t = torch.randint(0, scheduler.config.num_train_timesteps, (batch,), device=device)
    loss = F.mse_loss(unet(scheduler.add_noise(clean, noise, t), t, return_dict=False)[0], noise)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
    optimizer.step()
    warmup.step()
    optimizer.zero_grad()
    log.append(loss.detach().item())

# %%grape
unet.eval()
pipeline = DDPMPipeline(unet=unet, scheduler=scheduler)
pipeline.set_progress_bar_config(disable=True)
source = torch.Generator(device).manual_seed(1)
drawn.append(pipeline(batch_size=2, generator=source, num_inference_steps=25, output_type="np").images)

# %%grape
for kind in (DDIMScheduler, DPMSolverMultistepScheduler):
    sampler = kind.from_config(scheduler.config)
    sampler.set_timesteps(20)
    x = torch.randn(2, 3, size, size, generator=source, device=device)
    with torch.no_grad():
        for t in sampler.timesteps:
            x = sampler.step(unet(sampler.scale_model_input(x, t), t).sample, t, x).prev_sample
    drawn.append(x)

# %%
RESULT = {"model": unet, "optimizer": optimizer, "log": log, "drawn": drawn, "rate": warmup.get_last_lr()}
