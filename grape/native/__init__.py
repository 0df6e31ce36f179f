"""The C++ of operator streams: built for the installed torch at first use, kept in torch's cache of extensions."""

from .build import Unavailable, load, missing, ready, said, start

__all__ = ["Unavailable", "load", "missing", "ready", "said", "start"]
