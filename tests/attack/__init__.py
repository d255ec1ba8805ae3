"""An attack on a running broker, judged by an ordinary client: `python -m tests.attack`."""
