"""One captured graph: what is done before its launch, and what the call returns."""
