"""On the way to a call: which callables are taken over, and which of them is active."""
