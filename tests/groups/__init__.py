"""A small application that shares a topic among its processes, and what happens to it: `python -m
tests.groups`."""
