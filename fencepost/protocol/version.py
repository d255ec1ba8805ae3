"""The version of this package: the command line, a status and the metrics name it."""

VERSION = "0.1.0"
