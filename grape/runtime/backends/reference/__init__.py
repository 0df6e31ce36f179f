"""The reference backend: graphs that a CPU replays from a tape."""
