# %% an Emformer transducer decodes features by beam search
# needs: torchaudio
import torch
from torchaudio.models import RNNTBeamSearch, emformer_rnnt_model

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
layers, width, symbols, frames = (8, 256, 500, 160) if device == "cuda" else (2, 32, 40, 112)
model = emformer_rnnt_model(
    input_dim=80,
    encoding_dim=2 * width,
    num_symbols=symbols + 1,
    segment_length=16,
    right_context_length=4,
    time_reduction_input_dim=width // 4,
    time_reduction_stride=4,
    transformer_num_heads=4,
    transformer_ffn_dim=4 * width,
    transformer_num_layers=layers,
    transformer_dropout=0.1,
    transformer_activation="gelu",
    transformer_left_context_length=30,
    transformer_max_memory_size=0,
    transformer_weight_init_scale_strategy="depthwise",
    transformer_tanh_on_mem=True,
    symbol_embedding_dim=width,
    num_lstm_layers=2,
    lstm_layer_norm=True,
    lstm_layer_norm_epsilon=1e-3,
    lstm_dropout=0.3,
)
model = model.to(device).eval()
decoder = RNNTBeamSearch(model, blank=symbols, step_max_tokens=4)
clips = [torch.randn(frames + 16 * k + 4, 80, device=device) for k in range(3)]

# %%grape
found = []
with torch.no_grad():
    for clip in clips:
        length = torch.tensor([len(clip)], device=device)
        found.append(decoder(clip, length, beam_width=4))

# %%
RESULT = [[(tokens, score, output) for tokens, output, _, score in beams] for beams in found]
