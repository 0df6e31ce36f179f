"""Facts of a piece of code: names, scopes, jumps, and what forbids a rewrite."""
