"""`grape mcp`: a server of the Model Context Protocol, for assistants that work on a person's code."""

from __future__ import annotations

import argparse
from importlib.util import find_spec

from ..errors import UsageError


def mcp(_: argparse.Namespace) -> int:
    """Serve over standard input and output until the client goes. Raises `UsageError` where the package is missing."""
    if find_spec("mcp") is None:
        raise UsageError("grape mcp needs the package 'mcp': pip install 'grape-jupyter[mcp]'")
    from .assistants.server import serve

    return serve()
