"""I22: what a run leaves on its disks is whole, as `fencepost check` reads it.

Rule: all other judges learn what a broker knows, or what it recovers from a log. Readers of the files get
indexes, snapshots and manifests, too, and what is wrong in them shows only here. Nodes write manifests only
in worlds that may be damaged, so they are judged in those that no damage struck.
"""

from __future__ import annotations

from collections.abc import Iterator

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
    boot_id: str = ""  # unknown: each disk has its own

    def exists(self) -> bool:
        return True

    def directories(self) -> list[str]:
        return sorted(name for disk in self.journals.disks.values() for name in disk.directories())

    def files(self, directory: str) -> dict[str, int]:
        return {name: size for disk in self._of(directory) for name, size in disk.files(directory).items()}

    def read_file(self, path: str) -> bytes | None:
        return next((disk.read_file(path) for disk in self._of(path)), None)

    def open(self, path: str) -> ReadableFile:
        for disk in self._of(path):
            return disk.open(path)
        raise MissingFile(f"{self.location} have no file {path!r}")

    def _of(self, path: str) -> Iterator[SimulatedStorage]:
        directory = path.partition("/")[0]
        return (disk for partition, disk in self.journals.disks.items() if str(partition) == directory)


def judge_files(journals: ClusterJournals, exercised: Exercised) -> None:
    """At the end of a run, when every log has a leader and nothing is left to finish."""
    findings = check_logs(ClusterDisks(journals))
    exercised[FILES.name] += findings.partitions
    for finding in findings.found:
        if finding.severity is Severity.PROBLEM:
            raise FILES.broken(f"{finding.file}: {finding.what}: {finding.means}")
