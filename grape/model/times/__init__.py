"""Times, and what took them."""
