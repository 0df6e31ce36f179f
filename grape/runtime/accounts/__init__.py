"""What things take: the time of a cell, of calls and of copies; whether a capture pays."""
