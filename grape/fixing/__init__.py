"""From findings to rewrites that were tried: fixes are offered with their differences, and compared where they can be.

All of it happens when somebody asks for a rewrite, never at the end of a cell; what it takes, LibCST too, is imported
then.

Stands above `advisor` and `rewrite`, which know neither torch nor each other.
"""
