"""Salvage of a damaged data directory: what is lost, what is intact, and logs that a broker leads again."""
