"""The person's source: parsed, looked up by line, and the sites in it."""
