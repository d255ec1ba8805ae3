"""Puts a file at the URI of the command line, and deletes it while it is read."""

from __future__ import annotations

import sys

from pyarrow import fs

from fencepost.journal.storage import MissingFile
from fencepost.spark_bridge.filesystems import open_storage

uri = sys.argv[1]
filesystem, directory = fs.FileSystem.from_uri(uri)
filesystem.create_dir(directory)
with filesystem.open_output_stream(f"{directory}/log") as output:
    output.write(bytes(20 << 20))
storage = open_storage(uri)
file = storage.open("log")
filesystem.delete_file(f"{directory}/log")
try:
    file.read(0, 61)  # HDFS goes on serving it
except MissingFile as problem:
    print("has disappeared" if "has disappeared" in str(problem) else problem, end=", ")
print("is not read" if storage.read_file("log") is None else "is read")
