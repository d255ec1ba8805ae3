"""One load in a process of its own:
`python -m benchmarks.one_run SYSTEM LOAD ADDRESS BROKER_PROCESS_ID RECORDS TRANSACTIONS`.

Rule: prints one JSON line, the sample. LOAD `fill` writes what the fetches read and prints none.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from importlib import import_module

import attrs

from benchmarks.loads import Load, Sample, Scale, Work
from benchmarks.processes import cpu_seconds, resident_bytes
from benchmarks.systems import System

# The client's module, imported only in the process that uses it: each has its own weight.
CLIENTS = {System.OURS: "benchmarks.fencepost_client", System.CONFLUENT: "benchmarks.confluent_client"}
FILL = "fill"


def main(system: str, load: str, address: str, broker: str, records: str, transactions: str) -> None:
    """Runs one load and says how it went."""
    client = import_module(CLIENTS[System(system)])
    scale = Scale(records=int(records), transactions=int(transactions))
    if load == FILL:
        client.fill(address, scale)
        return
    with client.prepared(Load(load), address, scale) as work:
        sample = timed(work, scale.operations(Load(load)), broker_process_id=int(broker))
        print(json.dumps(attrs.asdict(sample)), flush=True)


def timed(work: Work, operations: int, *, broker_process_id: int) -> Sample:
    """Does the work by the clock; AssertionError when it was not all done."""
    gc.collect()
    broker_before, client_before = cpu_seconds(broker_process_id), time.process_time()
    begun = time.perf_counter()
    done = work()
    seconds = time.perf_counter() - begun
    client_cpu = time.process_time() - client_before
    broker_after = cpu_seconds(broker_process_id)
    assert done == operations, f"{done} of {operations} operations were done"
    return Sample(
        operations=operations,
        seconds=seconds,
        client_cpu_seconds=client_cpu,
        broker_cpu_seconds=None
        if broker_before is None or broker_after is None
        else broker_after - broker_before,
        client_bytes=resident_bytes(os.getpid(), peak=True),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
