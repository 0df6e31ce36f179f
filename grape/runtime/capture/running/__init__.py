"""The runs of a capture: in step with the eager one, rehearsed, and where their results go."""
