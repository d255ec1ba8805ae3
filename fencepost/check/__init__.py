"""Offline checks of a data directory: a model that reads every batch, and compares all that was derived."""
