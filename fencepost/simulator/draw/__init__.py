"""Pictures of a run: a space-time table for the terminal, and lanes with slanted messages as SVG."""
