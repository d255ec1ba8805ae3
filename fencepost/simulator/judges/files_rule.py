"""I22: what a run leaves on its disks is whole, as `fencepost check` reads it.

Rule: all other judges learn what a broker knows, or what it recovers from a log. Readers of the files get
indexes, snapshots and manifests, too, and what is wrong in them shows only here. Nodes write manifests in
worlds that lose power, and in those that may be damaged, which are judged if no damage struck.
"""

from __future__ import annotations

from functools import cached_property

import attrs

from fencepost.check.directory import check_logs
from fencepost.check.findings import Severity
from fencepost.journal.simulated import SimulatedStorage
from fencepost.journal.storage import MissingFile, ReadableFile
from fencepost.simulator.judges.rules import FILES, Exercised
from fencepost.simulator.world.journals import ClusterJournals


@attrs.frozen
class ClusterDisks:
    """The disks of all partitions, read as one data directory."""

    journals: ClusterJournals
    location: str = "the disks of the cluster"

    @property
    def boot_id(self) -> str:
        """That of every disk; unknown once one of them has lost its power, since each counts for itself."""
        found = {disk.boot_id for disk in self.journals.disks.values()}
        return found.pop() if len(found) == 1 else ""

    def exists(self) -> bool:
        return True

    def directories(self) -> list[str]:
        return sorted(name for disk in self.journals.disks.values() for name in disk.directories())

    def files(self, directory: str) -> dict[str, int]:
        disk = self._of(directory)
        return {} if disk is None else disk.files(directory)

    def read_file(self, path: str) -> bytes | None:
        disk = self._of(path)
        return None if disk is None else disk.read_file(path)

    def open(self, path: str) -> ReadableFile:
        disk = self._of(path)
        if disk is None:
            raise MissingFile(f"{self.location} have no file {path!r}")
        return disk.open(path)

    @cached_property
    def _disks(self) -> dict[str, SimulatedStorage]:
        return {str(partition): disk for partition, disk in self.journals.disks.items()}

    def _of(self, path: str) -> SimulatedStorage | None:
        """The disk of a partition, if it has one."""
        return self._disks.get(path.partition("/")[0])


def judge_files(journals: ClusterJournals, exercised: Exercised) -> None:
    """At the end of a run, when every log has a leader and nothing is left to finish."""
    findings = check_logs(ClusterDisks(journals))
    exercised[FILES.name] += findings.partitions
    for finding in findings.found:
        if finding.severity is Severity.PROBLEM:
            raise FILES.broken(f"{finding.file}: {finding.what}: {finding.means}")
