"""Side-by-side measurements against peers; never timed tests."""
