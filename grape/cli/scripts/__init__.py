"""`grape run SCRIPT.py`."""
