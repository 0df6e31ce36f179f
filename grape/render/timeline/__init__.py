"""Timelines, as the interactive view and Chrome show them."""
