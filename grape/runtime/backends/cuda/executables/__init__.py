"""Executables that graphs of several shapes share, node by node."""
