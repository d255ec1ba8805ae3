"""The log: segments, indexes and recovery over a storage interface."""
