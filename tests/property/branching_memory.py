"""Calls with branches that let go of memory, or get some, where no operator's arguments and results show it."""

from __future__ import annotations

import torch

__all__ = ["PROGRAMS"]


def aside(x: torch.Tensor) -> list[torch.Tensor]:
    """Work for the other lanes."""
    return [(x + n).sin().cos().tanh() for n in range(6)]


def readers(of: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    return [(of * n + x).sin().cos() for n in range(4)]


def later(x: torch.Tensor) -> list[torch.Tensor]:
    """They take memory that has become free."""
    return [one.tanh() for one in [(x + n).exp() for n in range(6)]]


def summed(*lists: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([one for found in lists for one in found]).sum(0)


def given_other_data(x: torch.Tensor) -> torch.Tensor:
    others, shared = aside(x), x.relu()
    read = readers(shared, x)
    shared.data = x * 3
    return summed(others, read, later(x), [shared])


def set_to_another(x: torch.Tensor) -> torch.Tensor:
    others, shared = aside(x), x.relu()
    read = readers(shared, x)
    shared.set_(x * 3)  # type: ignore[call-overload]
    return summed(others, read, later(x), [shared])


def made_from_values(x: torch.Tensor) -> torch.Tensor:
    others, constant = aside(x), torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    read = readers(constant, x)
    del constant
    return summed(others, read, later(x))


PROGRAMS = (given_other_data, set_to_another, made_from_values)
