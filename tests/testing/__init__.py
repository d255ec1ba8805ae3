"""The tools for the tests of applications: assertions, recording, fixtures, the sweep."""
