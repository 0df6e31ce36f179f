"""The host waits."""
