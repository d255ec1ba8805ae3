"""Lists the directory at each URI of the command line; prints the error, or what was found."""

from __future__ import annotations

import sys
import traceback

from fencepost.journal.storage import NotADataDirectory, StorageError
from fencepost.spark_bridge.filesystems import open_storage

for uri in sys.argv[1:]:
    try:
        print(open_storage(uri).directories())
    except (NotADataDirectory, StorageError):
        print(traceback.format_exc().replace("\n", " "))
