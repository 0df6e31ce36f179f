"""Graphs with branches on CUDA."""
