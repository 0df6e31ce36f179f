# %% LoRA: adapters of a small Llama trained, then tried
# needs: transformers, peft
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
layers, width, words, batch, length = (8, 512, 8000, 4, 64) if device == "cuda" else (2, 32, 300, 4, 24)
config = LlamaConfig(
    vocab_size=words,
    hidden_size=width,
    intermediate_size=2 * width,
    num_hidden_layers=layers,
    num_attention_heads=4,
    num_key_value_heads=2,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
adapters = LoraConfig(
    task_type="CAUSAL_LM", r=8, lora_alpha=16, lora_dropout=0.05, target_modules=["q_proj", "v_proj", "down_proj"]
)
model = get_peft_model(LlamaForCausalLM(config), adapters).to(device)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)
texts = torch.randint(3, words, (32, batch, length), device=device)
losses = []

# %%grape
model.train()
for step, ids in enumerate(texts):
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    if step % 2:
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    losses.append(loss.detach())
    if step % 10 == 0:
        print(f"step {step}: {loss.item():.4f}")

# %%grape
model.eval()
tokens = model.generate(input_ids=texts[0, :1, :8], max_new_tokens=24, do_sample=False)

# %%
RESULT = {"model": model, "optimizer": optimizer, "losses": losses, "tokens": tokens}
