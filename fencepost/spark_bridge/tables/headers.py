"""Every batch of a range, markers and aborted ones too, from its header alone.

Rule: of data batches only headers are read, unless checksums are to be compared. The records of a log are
about 200 times as many bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from fencepost.journal.layouts import LogLayout
from fencepost.journal.segments import walk_headers
from fencepost.journal.storage import ReadableFile
from fencepost.protocol.batches import BatchHeader
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.terms import IsolationLevel
from fencepost.spark_bridge.losses import Report
from fencepost.spark_bridge.planning import PlannedRange
from fencepost.spark_bridge.scanning import RangeScan


class HeaderScan(RangeScan):
    """A scan whose `stored` batches have no data unless they are control batches, or `reads_data`.

    Only then, checksums can be compared; a wrong one is not an error here.
    """

    def __init__(
        self, layout: LogLayout, range_: PlannedRange, *, reads_data: bool = False, report: Report | None
    ) -> None:
        self._reads_data = reads_data
        super().__init__(layout, range_, isolation_level=IsolationLevel.READ_UNCOMMITTED, report=report)

    def _walk(
        self, file: ReadableFile, position: int, stop: int
    ) -> Iterator[tuple[int, BatchHeader, memoryview]]:
        for at, header in walk_headers(file, position, stop):
            if at + header.size > stop:
                raise ProtocolViolation(f"a batch of {header.size} bytes is cut off after {stop - at}")
            is_read = self._reads_data or header.is_control
            yield at, header, memoryview(file.read(at, header.size) if is_read else b"")
