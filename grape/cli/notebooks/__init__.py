"""Notebooks as files, and the kernels that run them."""
