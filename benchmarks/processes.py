"""What the operating system knows of a process: the CPU it used and the memory it took.

Rule: None where the system does not tell; a figure is never guessed.
"""

from __future__ import annotations

import ctypes
import time
from pathlib import Path


def cpu_seconds(process_id: int) -> float | None:
    """CPU of all threads so far, to the nanosecond (POSIX clock_getcpuclockid, which macOS lacks)."""
    clock_of = getattr(ctypes.CDLL(None), "clock_getcpuclockid", None)
    if clock_of is None:
        return None
    clock = ctypes.c_int()
    if clock_of(process_id, ctypes.byref(clock)):
        return None
    return time.clock_gettime(clock.value)


def resident_bytes(process_id: int, *, peak: bool = False) -> int | None:
    """Memory of a process now, or at its peak since it was started (Linux's /proc)."""
    status = Path("/proc", str(process_id), "status")
    if not status.exists():
        return None
    wanted = "VmHWM:" if peak else "VmRSS:"
    kibibytes = next(line.split()[1] for line in status.read_text().splitlines() if line.startswith(wanted))
    return int(kibibytes) * 1024
