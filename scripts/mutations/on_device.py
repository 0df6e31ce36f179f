"""What runs on a GPU found: generator states set in a region, threads without Python below, captures without an end."""

from __future__ import annotations

from .rows import rows_of

__all__ = ["ROWS"]

EFFECTS = ("tests/unit/test_runtime_effects.py",)
BODIES = ("tests/unit/test_cuda_bodies.py",)
RESULTS = ("tests/unit/test_resizing.py",)
LOOKS = ("tests/unit/test_result_looks.py",)
GAINS = ("tests/unit/test_control_flow_offers.py",)

ROWS = (
    *rows_of(
        "grape.runtime.guarding.effects",
        EFFECTS,
        (
            "states: any state that is set is taken for one that was found",
            "            known = any(state is new_state for state in self._states)\n",
            "            known = True\n",
        ),
        (
            "states: one that was found may be set after draws",
            "if not known or _bytes(now(*args, **kwargs)) != _bytes(new_state):",
            "if not known:",
        ),
        (
            "states: the functions of the module itself are not watched",
            "_STATES: tuple[types.ModuleType, ...] = (torch.cuda, torch.cuda.random)\n",
            "_STATES: tuple[types.ModuleType, ...] = (torch.cuda,)\n",
        ),
    ),
    *rows_of(
        "grape.tracing.positions",
        ("tests/unit/test_profiling_positions.py",),
        (
            "positions: a thread without Python below raises",
            "        except ValueError:  # autograd's own thread",
            "        except KeyError:  # autograd's own thread",
        ),
    ),
    *rows_of(
        "grape.runtime.backends.cuda.conditional",
        BODIES,
        (
            "bodies: waiting for the device is let through",
            "            if get_ident() != thread:\n",
            "            if True:\n",
        ),
        (
            "bodies: other threads may not wait for the device",
            "            if get_ident() != thread:\n",
            "            if False:\n",
        ),
        (
            "bodies: what the driver has freed is forgotten",
            '            watch.lost_body |= not driver.succeeds("cuStreamEndCapture", stream.cuda_stream)\n',
            '            driver.succeeds("cuStreamEndCapture", stream.cuda_stream)\n',
        ),
    ),
    *rows_of(
        "grape.runtime.buffers.handed_out",
        RESULTS,
        (
            "results in use: watched for good",
            "    while _kernels and not any(True for _ in _stores):\n",
            "    while False:\n",
        ),
    ),
    *rows_of(
        "grape.runtime.buffers.slots",
        RESULTS,
        (
            "results in place: lent as they are, which torch does not resize",
            "        return growable(self.address, self._backend.device, nbytes)\n",
            "        return self.storage(nbytes)\n",
        ),
    ),
    *rows_of(
        "grape.runtime.replaying.looks",
        LOOKS,
        (
            "looks: whatever Python sees of a result is right",
            "        if look.tensor is tensor:\n",
            "        if True:\n",
        ),
        (
            "looks: of what a tensor is a view is not asked",
            "base = look.base if look.node is None else None",
            "base = None",
        ),
        ("looks: every alias is a view", "    if tensor._is_view() or tensor.is", "    if True or tensor.is"),
    ),
    *rows_of(
        "grape.runtime.replaying.outputs",
        LOOKS,
        (
            "outputs: the copy counts as a change",
            "        if not self._inference:\n            _set_versions",
            "        if False:\n            _set_versions",
        ),
    ),
    *rows_of(
        "grape.sessions.gains",
        GAINS,
        (
            "gains: told before the rewritten cell has run",
            "written.get(region.at.file) != _body(fixes.source)",
            "False",
        ),
        (
            "gains: replays count although most calls were eager",
            "region.after_ms if 2 * region.replays > region.calls else region.before_ms",
            "region.after_ms or region.before_ms",
        ),
        (
            "gains: the tape claims one",
            '    if backend != "cuda":\n',
            '    if backend == "none":\n',
        ),
    ),
    *rows_of(
        "grape.runtime.backends.cuda.memory",
        ("tests/unit/test_cuda_backend.py",),
        ("pools: the numbers of an id are given up", "        _keep_alive(number)\n", "        pass\n"),
    ),
    *rows_of(
        "grape.runtime.backends.operators",
        ("tests/unit/test_random_draws.py",),
        ("draws: dropout draws in evaluation, too", ', "train": False, "training": False}', "}"),
        (
            "draws: nothing draws that can be told not to",
            "                return False\n    return True\n",
            "                return False\n    return False\n",
        ),
    ),
    *rows_of(
        "grape.runtime.backends.cuda.executables.executable",
        ("tests/unit/test_cuda_random.py",),
        (
            "draws: nobody moves the generator before a launch",
            "            self._executables.random.begin(attachment.moves)\n",
            "            pass\n",
        ),
    ),
    *rows_of(
        "grape.runtime.backends.cuda.random",
        ("tests/unit/test_cuda_random.py",),
        ("draws: another seed is a move", "moved if seeds[0] == seeds[1] and moved > 0", "moved if moved > 0"),
    ),
    *rows_of(
        "grape.runtime.backends.cuda.executables.nodes",
        ("tests/unit/test_cuda_nodes.py",),
        (
            "updates: kernels in clusters change their function",
            "functions if clustered and self._preferred_clusters else None",
            "None",
        ),
        (
            "updates: no kernel changes its function",
            "functions if clustered and self._preferred_clusters else None",
            "functions",
        ),
        (
            "updates: no kernel in clusters does, whatever the device",
            "clustered and self._preferred_clusters",
            "clustered",
        ),
    ),
    *rows_of(
        "grape.profiling.devices.cupti",
        ("tests/unit/test_cupti.py",),
        ("CUPTI: it is taken from other threads", " or _others_use_torch():", ":"),
        ("CUPTI: it is taken from other tools", " or any(name in environ for name in _TOOLS)", ""),
        ("CUPTI: it is taken out without end", "    if _times >= MOST or", "    if"),
    ),
    *rows_of(
        "grape.runtime.regions.eager",
        ("tests/unit/test_outlining.py",),
        (
            "times: those of calls in which Grape worked count",
            "        if context.entered == entered and",
            "        if",
        ),
    ),
)
