"""Hypothesis on a shared machine: bounded by examples, never by the clock."""

from hypothesis import settings

settings.register_profile("bounded", max_examples=100, print_blob=True)
settings.load_profile("bounded")
