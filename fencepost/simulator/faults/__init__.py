"""Faults: what strikes, at which point of the protocol, and how it is undone."""
