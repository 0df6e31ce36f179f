"""`python -m grape` is `grape`; `python -m grape SCRIPT.py` is `grape run SCRIPT.py`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
