"""Runs fencepost under limits of the operating system: `python -m tests.attack.limited FILES BYTES ...`.

FILES is the largest number of open files, BYTES the largest size of a file; 0 is no limit.
"""

from __future__ import annotations

import resource
import sys

from fencepost.cli import main

if __name__ == "__main__":
    for kind, text in ((resource.RLIMIT_NOFILE, sys.argv[1]), (resource.RLIMIT_FSIZE, sys.argv[2])):
        if limit := int(text):
            resource.setrlimit(kind, (limit, limit))  # the hard limit too: `serve` raises the soft one to it
    del sys.argv[1:3]
    main()
