"""Cells and functions that operator streams serve."""
