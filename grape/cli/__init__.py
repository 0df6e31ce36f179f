"""The command line: the commands of `grape`. Light until one of them runs."""

from .entry import main

__all__ = ["main"]
