"""Alias prediction: a code position writes its result straight into the placeholder that a graph will read it from.

The idea is that of Zheng et al., "Grape" (MICRO 2023), section 4.1. There a misprediction aborts; here a prediction is
made only where it is harmless if wrong, and a position that mispredicts is demoted.
"""

from .predictor import MIN_BYTES, ROUNDS, Predictor

__all__ = ["MIN_BYTES", "ROUNDS", "Predictor"]
