"""Executables that shapes share: trial updates, verified replays, switching, eviction."""

from __future__ import annotations

from .rows import rows_of

__all__ = ["ROWS"]

STORE = "grape.runtime.compression"
TESTS = (
    "tests/unit/test_compression_store.py",
    "tests/property/test_compression_store.py",
    "tests/unit/test_shared_executables.py",
    "tests/unit/test_hostile_compression.py",
    "tests/unit/test_switching.py",
)
WRITES = ("tests/unit/test_cuda_executable.py", "tests/unit/test_cuda_writes.py")

ROWS = (
    *rows_of(
        f"{STORE}.admission",
        TESTS,
        (
            "trial: the replay of a shape that joins not verified",
            "accepted = written and verify(loaded.executable.replay)",
            "accepted = written",
        ),
        (
            "trial: an executable that did wrong is used on",
            "        attempt.certain = accepted or not written\n",
            "        attempt.certain = True\n",
        ),
        (
            "trial: the first replay of a class not verified",
            "        verified = verify(loaded.executable.replay)\n",
            "        verified = True\n",
        ),
        (
            "trial: records not read back",
            "    if record.nodes() != parameters:\n        return False\n",
            "",
        ),
        (
            "trial: the shape before may still be launched",
            "        resident.load(loaded, None)\n        loaded.touched = before",
            "        loaded.touched = before",
        ),
        (
            "trial: a refused update forgets who was loaded",
            "            resident.load(loaded, did)\n",
            "",
        ),
        (
            "members: nothing keeps what their nodes read",
            "Member(shape, group_of[candidate], candidate.base.encode(parameters), graph.attachment, graph, user)",
            "Member(shape, group_of[candidate], candidate.base.encode(parameters), None, graph, user)",
        ),
    ),
    *rows_of(
        f"{STORE}.switching",
        TESTS,
        (
            "switches: those that nobody waits for are paid for",
            "        if not loaded.executable.waits():  # else",
            "        if True:  # else",
        ),
        (
            "switches: any executable of the class is switched",
            "resident.to_switch(member)",
            "resident.least_useful(group.executables.values())",
        ),
        (
            "switch: touched nodes not noted before the first write",
            "        loaded.touched = touched  # before the first write: an interrupt may follow any\n",
            "",
        ),
        (
            "switch: nodes of the shape before stay",
            "    return [*[group.originals[number] for number in others], member.prepared]\n",
            "    return [member.prepared]\n",
        ),
        (
            "switch: one that ended in the dark is used on",
            "        attempt.certain = done\n",
            "        attempt.certain = True\n",
        ),
        (
            "switch: a refused one counts",
            "    return loaded if _switch(resident, loaded, member) else Refusing()\n",
            "    _switch(resident, loaded, member)\n    return loaded\n",
        ),
        (
            "switch: the shape before may still be launched",
            "        resident.load(loaded, None)\n        loaded.touched =",
            "        loaded.touched =",
        ),
    ),
    *rows_of(
        f"{STORE}.resident_executables",
        TESTS,
        (
            "switches: shapes outside of the turn displace one another",
            " or least.member.used_at < member.used_at",
            "",
        ),
        (
            "eviction: classes that wait go for a further executable",
            "        if over > 1:",
            "        if False:",
        ),
        (
            "eviction: who was loaded is not told",
            "            before.user.moved(None)\n",
            "",
        ),
        (
            "eviction: launched afterwards",
            "            self.load(loaded, None)\n            loaded.executable.release()\n",
            "            loaded.executable.release()\n",
        ),
        (
            "an executable that cannot be had takes others with it",
            "            if worth_ns is not None:\n                return None\n",
            "",
        ),
    ),
    *rows_of(
        f"{STORE}.residency",
        TESTS,
        ("eviction: the most useful first", "        least = min(crowd,", "        least = max(crowd,"),
        ("eviction: too many stay", "    if len(owned) + count <= limits.executables:\n", "    if True:\n"),
        (
            "eviction: one for each class, however large",
            "    if not (one_each and limits.class_bytes) or nbytes > limits.class_bytes:\n",
            "    if not (one_each and limits.class_bytes):\n",
        ),
        (
            "eviction: no class is sure of one",
            "    if not (one_each and limits.class_bytes) or nbytes > limits.class_bytes:\n",
            "    if True:\n",
        ),
        (
            "eviction: a further one of a class is one of another class",
            "count == 0 or (count == 1 and group not in groups)",
            "count <= 1",
        ),
        (
            "eviction: too large ones stay",
            "too_large = limits.nbytes is not None and used + nbytes > limits.nbytes",
            "too_large = False",
        ),
        (
            "eviction: for what is worth less",
            "sum(resident.benefit_ns for resident in gone) >= worth_ns:",
            "False:",
        ),
    ),
    *rows_of(
        f"{STORE}.store",
        TESTS,
        (
            "a class goes with its founder",
            "        if group.topology is None or not group.topology.shapes:\n",
            "        if True:\n",
        ),
        (
            "what an admission left behind stays",
            "                self._disown(owner, shape, graph)\n",
            "                pass\n",
        ),
    ),
    *rows_of(
        f"{STORE}.working_set",
        TESTS,
        (
            "whole graphs are kept without bound",
            "            total -= member.graph.host_bytes\n            _let_go(member, member.graph)\n",
            "            continue\n",
        ),
        (
            "prepared writes are kept without bound",
            "        member.prepared = None\n        member.user",
            "        member.user",
        ),
        (
            "graphs that no switch would use stay",
            "        if member.graph is not None and not _is_needed(member):\n",
            "        if False:\n",
        ),
    ),
    *rows_of(
        f"{STORE}.members",
        TESTS,
        ("members: each has a set of its own", "        if known == changed:\n", "        if False:\n"),
    ),
    *rows_of(
        "grape.runtime.backends.cuda.executables.instantiate",
        WRITES,
        (
            "executables: an update comes before the first upload",
            '            driver.call("cuGraphUpload", handle, self._stream)\n',
            "",
        ),
        (
            "executables: one that did not get on the device stays",
            '            driver.succeeds("cuGraphExecDestroy", handle)\n',
            "",
        ),
    ),
    *rows_of(
        "grape.runtime.backends.cuda.executables.executable",
        WRITES,
        (
            "writes: a refusal takes nothing back",
            "                else:\n                    self._take_back(_numbers_of(sets))\n",
            "",
        ),
        (
            "writes: an interrupt takes nothing back",
            "            if not done and self._held is before and self._source is not None:\n",
            "            if False:\n",
        ),
        (
            "writes: what earlier sets wrote is forgotten",
            "self.below if alike else self.nodes()",
            "self.below",
        ),
        (
            "writes: one that did not go back lives on",
            '        self.release()\n        raise RuntimeError("the device',
            '        raise RuntimeError("the device',
        ),
    ),
    *rows_of(
        "grape.runtime.backends.cuda.writes",
        WRITES,
        ("writes: no set is aligned", "        aligned = -base % 16\n", "        aligned = 8 - base % 8\n"),
        (
            "writes: a refused kernel is passed over",
            "prepared.nodes, prepared.structures)):\n            return False\n",
            "prepared.nodes, prepared.structures)):\n            pass\n",
        ),
    ),
    *rows_of(
        f"{STORE}.stored",
        TESTS,
        ("a released graph replays", "        self.replay = _released\n", ""),
        (
            "a shape stays bound to its executable",
            "        self.replay = launch if launch is not None else self._ask\n",
            "        self.replay = launch if launch is not None else self.replay\n",
        ),
    ),
)
