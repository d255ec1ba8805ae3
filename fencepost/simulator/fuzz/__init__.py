"""Fuzzing: worlds drawn from seeds, run, judged and shrunk."""
