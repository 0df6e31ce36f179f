"""Copies, and data that comes late."""
