"""Judges: what must hold at each step, what must hold of whole histories, and what a run has reached."""
