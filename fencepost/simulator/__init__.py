"""The simulator: one seed, one world. The broker's and the client's real cores under virtual time, with
faults, judged at every step.

Rule: nothing in here waits, knows a wall clock or rolls dice; every chance is a choice that can be
replayed.
"""
