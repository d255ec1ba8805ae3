"""Scenarios: stories of clients, nodes and faults, with what must come of them.

Rule: one data model, whether a story was read from TOML, written by the builder or found by a search.
"""
