"""Measured points: read them, predict them, report the errors, and fit constants to them."""
