# %% `generate`: sampling with temperature, top-k and top-p, then beams
# needs: transformers
import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
layers, width, words, tokens = (12, 768, 50257, 64) if device == "cuda" else (2, 32, 300, 48)
config = GPT2Config(vocab_size=words, n_embd=width, n_layer=layers, n_head=4, n_positions=256, eos_token_id=None)
model = GPT2LMHeadModel(config).to(device).eval()
if device == "cuda":
    model = model.half()
prompt = torch.randint(0, words, (2, 12), device=device)
texts = []
sampling = {"do_sample": True, "temperature": 0.8, "top_k": 50, "top_p": 0.95}

# %%grape
for _ in range(2):
    texts.append(model.generate(prompt, **sampling, max_new_tokens=tokens, pad_token_id=0))

# %%grape
texts.append(
    model.generate(prompt, num_beams=4, length_penalty=0.9, early_stopping=True, max_new_tokens=tokens, pad_token_id=0)
)

# %%
RESULT = texts
