"""What is known of earlier runs of a cell, here and in other kernels."""
