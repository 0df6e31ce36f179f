"""`python -m grape.cli` is `grape`."""

import sys

from .entry import main

sys.exit(main())
