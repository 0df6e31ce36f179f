"""Memory at fixed addresses: where arguments and results lie."""
