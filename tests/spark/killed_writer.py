"""A process that writes a log into the directory it is given and kills itself in the middle of a batch."""

import os
import signal
import sys
from pathlib import Path

from fencepost.journal.disk import DiskStorage
from fencepost.journal.journal import JournalSettings
from tests.spark.logs import RememberedLog, new_log

SETTINGS = JournalSettings(segment_bytes=5_000)


def write_history(log: RememberedLog) -> None:
    """Three producers; the manifest is soon out of date, and one transaction stays open near the end."""
    for number in range(150):
        producer_id = number % 3
        log.records(3, producer_id=producer_id, size=50)
        if number == 145:
            log.records(1, producer_id=7)
        if number % 5:
            (log.abort if number % 4 == 0 else log.commit)(producer_id)
        else:
            log.records(2, rich=True)
        if number == 60:
            log.write_manifest()
        if log.journal.is_full:
            log.roll()


def main() -> None:
    directory = Path(sys.argv[1])
    write_history(new_log(DiskStorage(directory), settings=SETTINGS))
    newest = max((directory / "orders-0").glob("*.log"))
    with newest.open("ab") as torn:
        torn.write(newest.read_bytes()[:100])
        torn.flush()
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
