"""What a replay depends on: arguments, state, modes, effects."""
