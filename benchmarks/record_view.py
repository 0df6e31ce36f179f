"""Records the timelines of GPT-2's decode step, before and after, as the file that `grape view` reads.

    python benchmarks/record_view.py OUT.json [--layers 12]

Needs a CUDA device and transformers; downloads nothing (random weights). Without a GPU it stops, unless --cpu is
given: then it records the CPU reference with a small model, to try the script.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

HEAD = "%%grape --engine regions --no-widget\n"
CELL = """\
cache = fresh_cache()
with torch.inference_mode():
    for index in range({steps}):
        out = model(input_ids=token, past_key_values=cache, use_cache=True)
        cache.crop(-1)
"""

SETUP = """\
import torch, warnings
warnings.filterwarnings("ignore")
from transformers import GPT2Config, GPT2LMHeadModel
torch.manual_seed(0)
config = GPT2Config(n_layer={layers}, n_embd={width}, n_head={heads})
model = GPT2LMHeadModel(config).to(device="{device}", dtype={dtype}).eval()
prompt = torch.randint(0, config.vocab_size, (5, 64), device="{device}")
token = torch.randint(0, config.vocab_size, (5, 1), device="{device}")

def fresh_cache():
    with torch.inference_mode():
        return model(prompt, use_cache=True).past_key_values
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--cpu", action="store_true")
    arguments = parser.parse_args()
    import torch
    from IPython.core.interactiveshell import InteractiveShell

    if not arguments.cpu and not torch.cuda.is_available():
        sys.exit("no CUDA device; --cpu records the CPU reference")
    from grape.render.files import write_text
    from grape.render.html.page import view_json
    from grape.render.timeline.view import build_view

    device, dtype, width, heads = ("cpu", "torch.float32", 64, 4) if arguments.cpu else ("cuda", "torch.half", 768, 12)
    shell = InteractiveShell.instance()

    def run(source: str) -> None:
        shell.run_cell(source, store_history=True).raise_error()  # so that each cell has a number of its own

    run("%load_ext grape\nimport grape")
    values = {"device": device, "dtype": dtype, "width": width, "heads": heads, "layers": arguments.layers}
    run(SETUP.format(**values))
    # Once to warm up what is not the step's: allocator, cuBLAS, the first launches. Then as a person would run it: the
    # first run is looked at, the second one makes graphs.
    run(CELL.format(steps=20))
    for _ in range(2):
        run(HEAD + CELL.format(steps=arguments.steps))
    report = shell.user_ns["grape"].last
    before, after = report.timelines()
    if before is None or after is None:
        sys.exit(f"no timeline {'before' if before is None else 'after'} was recorded: {report.verdict}")
    placed = [sum(event.position is not None for event in timeline.events) for timeline in (before, after)]
    view = build_view(report)
    write_text(arguments.out, view_json(view), "the view")
    print(report.verdict)
    print(f"before: {len(before.events)} events, {placed[0]} with a line; after: {len(after.events)}, {placed[1]}")
    print(f"{arguments.out}: {arguments.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
