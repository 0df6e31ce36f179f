"""One fix per file: a pure function of the parsed source and the finding. `registry.py` says which code has which."""
