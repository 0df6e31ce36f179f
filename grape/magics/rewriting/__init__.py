"""Rewrites that the notebook offers, takes and undoes."""
