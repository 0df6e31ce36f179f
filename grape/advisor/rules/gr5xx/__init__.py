"""Launches."""
