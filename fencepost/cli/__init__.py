"""The command line: every subcommand of `fencepost`."""
