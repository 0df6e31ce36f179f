"""`grape mcp`: what an assistant can have done to a script or a notebook. Only `server` knows the protocol."""
