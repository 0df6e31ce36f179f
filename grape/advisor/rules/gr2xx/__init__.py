"""Shapes, and what they cost."""
