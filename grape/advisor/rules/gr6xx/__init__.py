"""Several ranks."""
