"""What is tried, each with the line that does it. "Characterizing and Efficiently Accelerating Multimodal Generation
Model Inference" (2024) found these together, and graphs, to give 3.9x.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .subject import Subject

_CAN_BE_ALONE = "isolate_recompiles" in inspect.signature(torch.compile).parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """`write` is the line that does it, to a module called `model` on a `{device}`. `hindrance` says why it is nothing
    for a subject, or None. `pull` gives, for a copy of it, the subject to run, and takes back what it set for the
    process.
    """

    name: str
    write: str
    hindrance: Callable[[Subject], str | None]
    pull: Callable[[Subject], contextlib.AbstractContextManager[Subject]]


def _compiled(mode: str | None) -> Callable[[Subject], contextlib.AbstractContextManager[Subject]]:
    @contextlib.contextmanager
    def pull(subject: Subject) -> Iterator[Subject]:
        # Else what was compiled for other shapes of the class, as for the person's own calls, decides what is compiled.
        compiled = functools.partial(torch.compile, isolate_recompiles=True) if _CAN_BE_ALONE else torch.compile
        yield replace(subject, call=compiled(subject.module, mode=mode))

    return pull


@contextlib.contextmanager
def _tf32(subject: Subject) -> Iterator[Subject]:
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32"
    try:
        yield subject
    finally:
        matmul.fp32_precision = before


@contextlib.contextmanager
def _bfloat16(subject: Subject) -> Iterator[Subject]:
    inner = subject.module if subject.call is None else subject.call

    def call(*args: object, **kwargs: object) -> object:
        with torch.autocast(subject.device.type, dtype=torch.bfloat16):
            return inner(*args, **kwargs)

    yield replace(subject, call=call)


@contextlib.contextmanager
def _compiled_bfloat16(subject: Subject) -> Iterator[Subject]:
    with _compiled(None)(subject) as compiled, _bfloat16(compiled) as both:
        yield both


@contextlib.contextmanager
def _half(subject: Subject) -> Iterator[Subject]:
    subject.module.half()
    args, kwargs = subject.with_inputs(lambda tensor: tensor.half() if tensor.is_floating_point() else tensor)
    yield replace(subject, args=args, kwargs=kwargs)


@contextlib.contextmanager
def _channels_last(subject: Subject) -> Iterator[Subject]:
    subject.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    args, kwargs = subject.with_inputs(_to_channels_last)
    yield replace(subject, args=args, kwargs=kwargs)


def _to_channels_last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


@contextlib.contextmanager
def _benchmark(subject: Subject) -> Iterator[Subject]:
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield subject
    finally:
        torch.backends.cudnn.benchmark = before


def _on_cpu(subject: Subject) -> str | None:
    return None if subject.device.type == "cuda" else "for a GPU"


def _not_single(subject: Subject) -> str | None:
    return None if any(part.dtype == torch.float32 for part in subject.parts()) else "no parameter is float32"


def _not_for_half(subject: Subject) -> str | None:
    return "for inference" if subject.trains else _on_cpu(subject) or _not_single(subject)


def _no_images(subject: Subject) -> str | None:
    convolutions = (torch.nn.Conv2d, torch.nn.ConvTranspose2d)
    return None if any(isinstance(one, convolutions) for one in subject.module.modules()) else "no Conv2d in it"


LEVERS: tuple[Lever, ...] = (
    Lever(
        name="TF32",
        write='torch.backends.cuda.matmul.fp32_precision = "tf32"',
        hindrance=lambda subject: (
            _on_cpu(subject)
            or _not_single(subject)
            or ("on already" if torch.backends.cuda.matmul.fp32_precision == "tf32" else None)
        ),
        pull=_tf32,
    ),
    Lever(
        name="bfloat16 (autocast)",
        write='with torch.autocast("{device}", dtype=torch.bfloat16): ...',
        hindrance=_not_single,
        pull=_bfloat16,
    ),
    Lever(name="float16", write="model.half(), and inputs as .half()", hindrance=_not_for_half, pull=_half),
    Lever(
        name="channels_last",
        write="model.to(memory_format=torch.channels_last), and images too",
        hindrance=_no_images,
        pull=_channels_last,
    ),
    Lever(
        name="cuDNN benchmark",
        write="torch.backends.cudnn.benchmark = True",
        hindrance=lambda subject: _on_cpu(subject) or _no_images(subject),
        pull=_benchmark,
    ),
    Lever(name="torch.compile", write="model = torch.compile(model)", hindrance=lambda _: None, pull=_compiled(None)),
    Lever(
        name="torch.compile, reduce-overhead",
        write='model = torch.compile(model, mode="reduce-overhead"); a call overwrites the results of the one before',
        hindrance=_on_cpu,
        pull=_compiled("reduce-overhead"),
    ),
    Lever(
        name="torch.compile and bfloat16",
        write='model = torch.compile(model), called in torch.autocast("{device}", dtype=torch.bfloat16)',
        hindrance=_not_single,
        pull=_compiled_bfloat16,
    ),
)
"""In the order in which they are tried: those that take long to build come last."""
