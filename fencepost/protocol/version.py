"""The version of this package: the command line, a status and the metrics name it."""

from typing import Final

VERSION: Final = "0.1.0"
