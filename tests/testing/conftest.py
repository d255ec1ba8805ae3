"""Imports what the plugin imports, so that a session of pytest within a test need not do that again."""

from importlib import import_module

import_module("fencepost.testing.pytest_runs")
