"""What a syntax tree shows of tensors, loops and host reads, for rules that see source alone."""
