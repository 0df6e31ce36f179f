"""GR303: batches that come sooner.

    loader = DataLoader(data, batch_size=64)         loader = DataLoader(data, sampler=BatchSampler(
                                                         SequentialSampler(data), 64, False), batch_size=None)
    loader = DataLoader(frames, batch_size=64)       loader = DataLoader(frames, batch_size=64, num_workers=4)

One index into the tensors of a `TensorDataset` gives the rows that were taken and stacked one by one: the same bits in
the same order, from the same random numbers. Other datasets are left to worker processes, where making items moved no
random generator. The loader itself may only be iterated and asked for its length, as its `batch_size` is another one.
"""

from __future__ import annotations

import libcst as cst

from ...model import Finding
from ..arguments import keyword, with_keyword
from ..code import Code, descendants, dotted, importing
from ..effects import call_name
from ..result import Declined
from .pinned_input import made_at

_UNDERSTOOD = ("batch_size", "shuffle", "drop_last", "pin_memory", "generator", "num_workers")
_HERE = "torch.utils.data."


def fix(code: Code, finding: Finding) -> str | Declined:
    assert finding.at is not None
    loader = _loader_at(code, finding.at.line)
    if isinstance(loader, Declined):
        return loader
    known = dict(finding.evidence)
    if keyword(loader, "num_workers") is not None and known.get("num_workers"):
        return Declined(why="the loader has worker processes already", line=code.line(loader))
    if known.get("tensor_dataset"):
        return _rows_at_once(code, loader)
    return _with_workers(code, loader, finding)


def _loader_at(code: Code, line: int) -> cst.Call | Declined:
    """The call of `DataLoader` that made what the loop on the line goes over."""
    loop = next((node for node in code.on_line(line, cst.For) if code.line(node) == line), None)
    if loop is None:
        return Declined(why="no `for` loop begins on the line", line=line)
    source = loop.iter
    while isinstance(source, cst.Call) and call_name(source).rpartition(".")[2] in ("enumerate", "tqdm"):
        if not source.args or source.args[0].keyword is not None or source.args[0].star:
            return Declined(why="what the loop goes over cannot be told", line=line)
        source = source.args[0].value
    if isinstance(source, cst.Call) and call_name(source).rpartition(".")[2] == "DataLoader":
        if any(arg.star for arg in source.args):
            return Declined(why="the DataLoader's options are computed", line=line)
        return source
    if not isinstance(source, cst.Name):
        return Declined(why="the loop does not go over a DataLoader by name", line=line)
    made = made_at(code, source.value)
    if isinstance(made, cst.Call):
        refused = _only_iterated(code, source.value)
        if refused is not None:
            return refused
    return made


def _only_iterated(code: Code, name: str) -> Declined | None:
    """Why the loader may be more than iterated; None where it is not."""
    if code.is_shared(name, None):
        return Declined(why=f"a function that may run meanwhile uses `{name}`")
    for use in code.uses(name):
        above = code.parent(use)
        if code.is_stored(use) or isinstance(above, (cst.For, cst.CompFor)):
            continue
        call = code.parent(above) if isinstance(above, cst.Arg) else None
        if isinstance(call, cst.Call) and call_name(call).rpartition(".")[2] in ("enumerate", "tqdm", "len", "iter"):
            continue
        return Declined(why=f"`{name}` is used for more than its batches", line=code.line(use))
    return None


def _rows_at_once(code: Code, loader: cst.Call) -> str | Declined:
    line = code.line(loader)
    options = {arg.keyword.value: arg.value for arg in loader.args if arg.keyword is not None}
    positional = [arg.value for arg in loader.args if arg.keyword is None]
    for name, value in zip(("dataset", "batch_size", "shuffle"), positional, strict=False):
        options[name] = value
    data = options.pop("dataset", None)
    other = next((name for name in options if name not in _UNDERSTOOD), None)
    if data is None or len(positional) > 3 or other is not None:
        return Declined(why=f"the loader has `{other}`" if other else "the loader's dataset is not named", line=line)
    if not isinstance(data, cst.Name):
        return Declined(why="the dataset has no name, and the rewrite needs it twice", line=line)
    shuffle, size = options.get("shuffle"), options.get("batch_size")
    if shuffle is not None and not (isinstance(shuffle, cst.Name) and shuffle.value in ("True", "False")):
        return Declined(why="whether the loader shuffles is computed", line=line)
    if size is None or (isinstance(size, cst.Name) and size.value == "None"):
        return Declined(why="the loader makes no batches", line=line)
    kept = {name: options[name] for name in ("pin_memory", "generator") if name in options}
    if any(isinstance(node, cst.Call) for value in (size, *kept.values()) for node in descendants(value)):
        return Declined(why="the loader's options are computed", line=line)
    drop = code.text(options["drop_last"]) if "drop_last" in options else "False"
    name, generator = data.value, code.text(kept["generator"]) if "generator" in kept else ""
    order = f"{_HERE}SequentialSampler({name})"
    if isinstance(shuffle, cst.Name) and shuffle.value == "True":
        order = f"{_HERE}RandomSampler({name}{f', generator={generator}' if generator else ''})"
    sampler = f"{_HERE}BatchSampler({order}, {code.text(size)}, {drop})"
    others = "".join(f", {option}={code.text(value)}" for option, value in kept.items())
    made = f"{code.text(loader.func)}({name}, sampler={sampler}, batch_size=None{others})"
    return importing(code, code.replaced({loader: cst.parse_expression(made)}))


def _with_workers(code: Code, loader: cst.Call, finding: Finding) -> str | Declined:
    known, line = dict(finding.evidence), code.line(loader)
    workers = known.get("workers_here") or 0
    if workers < 1:
        return Declined(why="there is no core for a worker process, or none could have the dataset", line=line)
    if known.get("draws") is not False:
        return Declined(why="making items draws random numbers, which workers would draw otherwise", line=line)
    if known.get("on_cpu") is not True:
        return Declined(why="the items lie on a device, which worker processes cannot use", line=line)
    if keyword(loader, "num_workers") is not None:
        return Declined(why="the loader says how many workers it has", line=line)
    if not dotted(loader.func):
        return Declined(why="what makes the loader cannot be told", line=line)
    return code.replaced({loader: with_keyword(loader, "num_workers", str(workers))})
