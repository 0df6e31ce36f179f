"""Pipelines: what waits for what, and who shares memory."""

from __future__ import annotations

from .rows import rows_of

__all__ = ["ROWS"]

STREAMS = ("tests/unit/test_pipeline_streams.py",)
LOOP = ("tests/unit/test_pipeline.py",)

ROWS = (
    *rows_of(
        "grape.runtime.pipelines.pipelining",
        STREAMS,
        (
            "pipeline: samples before it is free",
            "(self._last if looking or self._serial is not None else self._free)",
            "(self._last if looking or self._serial is not None else [])",
        ),
        (
            "pipeline: stages overlap while they are looked at",
            "self._last if looking or self._serial is not None",
            "self._last if self._serial is not None",
        ),
        (
            "pipeline: stages overlap that share memory",
            "        if found is not None:\n            writer, reader = found\n",
            "        if False:\n            writer, reader = found\n",
        ),
        (
            "pipeline: the caller reads before it is there",
            "{*self._owners, *current} if self._held else ()",
            "()",
        ),
        (
            "pipeline: what was dropped is free at once",
            "        if self._held and self.done and not",
            "        if False and not",
        ),
        (
            "pipeline: results for another stream are not copied",
            "        if any(stream not in self._owners for stream in current):\n",
            "        if False:\n",
        ),
        (
            "pipeline: results in memory of a stage",
            "if stage is self._stages[-1] and current else like",
            "if False else like",
        ),
        (
            "pipeline: behind an error nobody waits",
            "            self._wait_for_stages(current)\n            raise\n",
            "            raise\n",
        ),
        (
            "pipeline: late writes",
            "not stage.served and self._versions.late(number)",
            "not stage.served and False",
        ),
    ),
    *rows_of(
        "grape.runtime.pipelines.stage",
        STREAMS,
        (
            "pipeline: a stage before its sample is there",
            "            for event in after:\n                self.stream.wait_event(event)\n            if not",
            "            if not",
        ),
        (
            "pipeline: a stage hands on its state",
            "copied(self._call(value, looking=looking), take)",
            "self._call(value, looking=looking)",
        ),
        ("pipeline: states are let go of at once", "            self._state.mark(self.stream)\n", ""),
        (
            "pipeline: graphs that draw",
            "        if self.plain is None and self._offset() != before:\n",
            "        if False:\n",
        ),
    ),
    *rows_of(
        "grape.runtime.pipelines.sharing",
        STREAMS,
        (
            "pipeline: memory that another stage makes",
            "isdisjoint({*one.written, *one.made})",
            "isdisjoint(one.written)",
        ),
        ("pipeline: memory that another stage writes", "isdisjoint({*one.written, *one.made})", "isdisjoint(one.made)"),
        ("pipeline: what a stage alone writes", "if self._users[key] != {number}:", "if True:"),
    ),
    *rows_of(
        "grape.runtime.pipelines.own_streams",
        STREAMS,
        (
            "pipeline: two have one stream",
            "_made.get(device, 0) + 1",
            "1",
        ),
    ),
    *rows_of(
        "grape.runtime.pipelines.pipelining",
        LOOP,
        ("pipeline: the caller's sample itself", "        value = copied(sample)\n", "        value = sample\n"),
        (
            "pipeline: nothing but the results before an error",
            "        if failed is not None:\n",
            "        if False:\n",
        ),
        (
            "pipeline: one sample too far ahead",
            "if len(self._flights) >= self._depth else []",
            "if len(self._flights) > self._depth else []",
        ),
    ),
    *rows_of(
        "grape.runtime.pipelines.values",
        LOOP,
        (
            "pipeline: tensors that share memory are parted",
            "        if isinstance(leaf, torch.Tensor):\n            groups",
            "        if isinstance(leaf, torch.Tensor):\n            leaf = leaf.clone()\n            groups",
        ),
        ("pipeline: alignment", "// ALIGNMENT * ALIGNMENT", "// 1"),
        (
            "pipeline: strides",
            "    return torch.empty_strided(tensor.size(), tensor.stride(), dtype",
            "    return torch.empty(tensor.size(), dtype",
        ),
    ),
)
