"""What the tests of an application need: fixtures, assertions, a record of what happened, and the sweep."""
