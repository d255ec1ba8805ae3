"""Comparisons with a peer; no test depends on them."""
