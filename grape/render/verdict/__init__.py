"""The sentence at the top of a report, and what comes next."""
