"""Whether a call can be captured, and whether its graph is right."""
