"""Regions: what is known of a callable that may be replayed, and what becomes of each call of it."""
