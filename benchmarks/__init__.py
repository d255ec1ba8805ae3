"""Measurements beside a peer; no test depends on them."""
