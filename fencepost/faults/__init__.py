"""Faults as values, and the phrases that people write them in; the simulator and the server share both."""
