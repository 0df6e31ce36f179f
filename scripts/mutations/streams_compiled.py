"""CUDA graphs of compiled code: each check without which a graph would leave something else.

python scripts/mutation_table.py compiled:
"""

from __future__ import annotations

from .rows import of_streams, rows_of

__all__ = ["ROWS"]

GRAPHS = "tests/unit/test_streams_compiled_graphs.py"
REFUSALS = "tests/unit/test_streams_compiled_refusals.py"

ROWS = (
    *rows_of(
        "grape.streams.compiled.graphs",
        (GRAPHS, REFUSALS),
        ("compiled: a graph that leaves other bits serves", "or not alike(found, captured.handed_out(given))", ""),
        ("compiled: a graph that leaves other state serves", "not alike(last, changed) or ", ""),
        ("compiled: what ran at the capture stands for the graph", "        spoil(captured.own())", "        pass"),
        (
            "compiled: inputs that are written, not told of",
            "if not alike(list(placeholders.values()), [given[at] for at in placeholders]):",
            "if False:",
        ),
        ("compiled: a stopped capture leaves a graph", "                form.refused = _STOPPED\n", ""),
        ("compiled: state stays as the graph left it", "load(changed[: len(last)], last)", "pass"),
        ("compiled: state is not set back for the graph", "    load(changed, first)\n        spoil", "    spoil"),
        ("compiled: random numbers are replayed", "if self._process.draws() != drawn:", "if False:"),
        (
            "compiled: a switch of how products are computed",
            "                known.forms.clear()",
            "                pass",
        ),
        ("compiled: sizes", "(given.size(), given.stride(), given.dtype)", "(given.stride(), given.dtype)"),
        ("compiled: numbers", "                key.append(given)", "                pass"),
        ("compiled: inference mode", "[torch.is_inference_mode_enabled(), addresses]", "[addresses]"),
        ("compiled: static inputs elsewhere", "[torch.is_inference_mode_enabled(), addresses]", "[0]"),
        ("compiled: inputs without addresses", " and addresses is not None", ""),
        ("compiled: modes", "torch._C._len_torch_dispatch_stack() or ", ""),
        ("compiled: other streams", " or not self._process.is_here():", ":"),
        ("compiled: inference tensors are written outside", "    return _NOT_CAPTURED  # nobody", "    pass  # nobody"),
        ("compiled: autograd sees copies", "torch.no_grad(), unnoticed(changed):", "torch.no_grad():"),
        ("compiled: slower on the device", "return _NO_FASTER if self._process.timed(again)[1] > took else", "return"),
        ("compiled: copies beyond the budget", "return _NO_ROOM if stays +", "return '' if stays +"),
        ("compiled: closed while it runs", "        if self._closed:\n            self.close()", "        pass"),
        ("compiled: dead graphs stay", "if self._dead and self._process.is_here():", "if False:"),
        ("compiled: results were written by copies", "versions=versions(found, sources)", "versions={}"),
        ("compiled: inputs stay in the list", "        inputs.clear()\n", ""),
    ),
    *rows_of(
        "grape.streams.compiled.made",
        (GRAPHS, REFUSALS),
        ("compiled: results that share memory are apart", "if len(group) > 1 or", "if"),
        ("compiled: results lie in inputs or in what the code holds", "if groups.keys() & others.keys():", "if False:"),
        ("compiled: what the code holds is handed out as copies", "lying([*reads, *found])", "lying(reads)"),
        ("compiled: results begin in the middle", " or kept[group[0]].storage_offset()]", "]"),
        ("compiled: inputs that are results are copied", "if read is one), None", "if False), None"),
        ("compiled: views are handed out as none", " and not given[number]._is_view()", ""),
        (
            "compiled: results lie to each other in other ways",
            "same = [*groups.values()] == [*lying(given).values()]",
            "same = True",
        ),
        (
            "compiled: results begin elsewhere",
            "kept[number].storage_offset() == given[number].storage_offset() and ",
            "",
        ),
    ),
    *rows_of(
        "grape.streams.compiled.memory",
        (GRAPHS, REFUSALS),
        (
            "compiled: memory of several results is turned around twice",
            "for first, *_ in lying(tensors).values():",
            "for first in range(len(tensors)):",
        ),
    ),
    *rows_of(
        "grape.streams.compiled.code",
        (GRAPHS, REFUSALS),
        ("compiled: graphs of torch's own", 'if options["cudagraphs"]:', "if False:"),
        ("compiled: code of training", '            options["is_inference"]\n', "            True\n"),
        ("compiled: C++", '            and not options.get("cpp_wrapper")\n', ""),
        ("compiled: other kinds of devices", 'set(made.device_types) == {"cuda"}', "True"),
        ("compiled: another device", "set(made.device_idxs) == {device.index or 0}", "True"),
        ("compiled: what torch would not capture", "            and not made.disabled_cudagraphs_reason\n", ""),
        ("compiled: objects of TorchScript", "            and not made.torchbind_constants\n", ""),
        ("compiled: code without a source", "            and source\n", ""),
        ("compiled: what is done on the host", "            and not _ON_THE_HOST.search(source)\n", ""),
        ("compiled: memory beside inputs", "            and not _BEYOND.search(made.runnable_graph_str)\n", ""),
        ("compiled: operators of others", "            and set(_NAMESPACE.findall(source)) <= _KNOWN\n", ""),
        ("compiled: moving inputs are written", "            and set(code.changed) <= set(code.static)\n", ""),
    ),
    of_streams(
        "compiled: inputs lie where the code writes",
        (REFUSALS, "-k", "TestAddresses"),
        "inputs.h",
        ("is_shared(storage_of(*t), storage_of(*w))", "false"),
    ),
    of_streams(
        "compiled: inputs that begin elsewhere",
        (REFUSALS, "-k", "TestAddresses"),
        "inputs.h",
        ("      found.push_back(static_cast<int64_t>(alignment_class(address(*t), CONTENT)));\n", ""),
    ),
    *rows_of(
        "grape.streams.captures",
        ("tests/unit/test_streams_preparation.py",),
        ("compiled: threads capture at once", "if not self._captures.acquire(blocking=False):", "if False:"),
        (
            "compiled: who stops a capture is not heard",
            "if error.__context__ is not None and not isinstance(error.__context__, Exception):",
            "if False:",
        ),
    ),
)
