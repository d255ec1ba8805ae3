"""Imports all that a session of pytest within a test may import: such a session forgets what it imported, and
another import of the same module would make other classes.
"""

from importlib import import_module

import fencepost

for module in ("testing.pytest_runs", "simulator.draw.svg", "simulator.draw.text"):
    import_module(f"fencepost.{module}")
for name in dir(fencepost):
    getattr(fencepost, name)
