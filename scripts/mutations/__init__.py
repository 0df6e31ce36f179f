"""Rows of the mutation table, by subject, and how a row breaks something."""
