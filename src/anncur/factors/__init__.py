"""Turns exact anchor scores into guesses for the scores that nobody has paid for."""
