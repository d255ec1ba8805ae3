"""`fencepost fault add|list|wait|end|remove`: faults of a running broker, for tests in any language.

Rule: the faults and their phrases are those of `serve --fault`; `wait` fails if one has not struck in time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

from cyclopts import Parameter

from fencepost.broker.fault_handles import FaultHandle, Faults
from fencepost.broker.faults import instead_of
from fencepost.cli.errors import FAILED, OK, CommandFailed, WrongUsage, complain
from fencepost.cli.options import AS_TIME, LOCAL, AsJson, ClusterOptions
from fencepost.cli.output import Columns, print_done, print_rows
from fencepost.client.errors import ClientError
from fencepost.client.shells.sync import Admin
from fencepost.faults.grammar import BadPhrase
from fencepost.faults.phrases import FAULTS_HELP, partition_named
from fencepost.protocol.messages import DescribedFault
from fencepost.testing.fault_registry import RemoteFaultRegistry

LISTED: Columns[DescribedFault] = (
    ("fault_id", "ID", lambda fault: fault.fault_id),
    ("struck", "STRUCK", lambda fault: fault.struck),
    ("reached", "REACHED", lambda fault: fault.reached),
    ("lasts", "LASTS", lambda fault: fault.is_lasting),
    ("fault", "FAULT", lambda fault: fault.fault),
)
IN_JSON: Columns[DescribedFault] = (*LISTED, ("absent", "", lambda fault: list(fault.absent)))
WAIT_S: Final = 10.0

FaultIds = Annotated[tuple[int, ...], Parameter(negative="", help="These faults; all if none is given.")]


def add_faults(
    fault: Annotated[tuple[str, ...], Parameter(negative="")],
    /,
    *,
    cluster: ClusterOptions = LOCAL,
    as_json: AsJson = False,
) -> None:
    """Add faults: all of them, or none if the broker refuses one.

    Parameters
    ----------
    fault
        "when POINT do ACTION [until POINT] [every N times] [at most N times]", each as one argument.
    """
    faults = _faults(cluster)
    added: list[tuple[FaultHandle, str]] = []
    try:
        for text in fault:
            added.append((faults.add(text), text))
    except BadPhrase as problem:
        for handle, _ in added:
            handle.remove()
        raise WrongUsage(str(problem), then=FAULTS_HELP) from problem
    absent, partition_counts = _absent(cluster)
    for handle, text in added:
        partitions = absent.get(handle.fault_id, ())
        facts = {"fault_id": handle.fault_id, "fault": text, "absent": list(partitions)}
        print_done(f"Added fault {handle.fault_id}: {text}", facts, as_json=as_json)
        _name_absent(handle.fault_id, partitions, partition_counts)


def list_faults(*, cluster: ClusterOptions = LOCAL, as_json: AsJson = False) -> None:
    """List the faults, and how often each struck."""
    with cluster.connect() as admin:
        listed = admin.list_faults()
        partition_counts = _partition_counts(admin, listed)
    print_rows(IN_JSON if as_json else LISTED, listed, as_json=as_json)
    for fault in listed:
        _name_absent(fault.fault_id, fault.absent, partition_counts)


def wait_for_faults(
    fault_id: FaultIds = (),
    /,
    *,
    timeout: Annotated[float, AS_TIME] = WAIT_S,
    cluster: ClusterOptions = LOCAL,
    as_json: AsJson = False,
) -> int:
    """Wait until faults have struck.

    Parameters
    ----------
    timeout
        How long to wait for each, such as 30s.
    """
    missing: list[str] = []
    for fault in _chosen(_faults(cluster), fault_id):
        text = fault.missing_after(timeout)
        facts = {"fault_id": fault.fault_id, "struck": fault.struck, "missing": text or None}
        gave_up = f"Gave up on fault {fault.fault_id} after {timeout:g} s: {text}"
        struck = f"Fault {fault.fault_id} struck: {fault.text}"
        print_done(gave_up if text else struck, facts, as_json=as_json)
        missing += [text] if text else []
    return FAILED if missing else OK


def end_faults(
    fault_id: FaultIds = (), /, *, cluster: ClusterOptions = LOCAL, as_json: AsJson = False
) -> None:
    """Undo what faults did: release messages, resume the broker, repair its disk."""
    for fault in _chosen(_faults(cluster), fault_id):
        was_lasting = fault.is_lasting
        fault.end()
        told = (
            f"Ended fault {fault.fault_id}."
            if was_lasting
            else f"Fault {fault.fault_id} had nothing to undo."
        )
        facts = {"fault_id": fault.fault_id, "was_lasting": was_lasting}
        print_done(told, facts, as_json=as_json)


def remove_faults(
    fault_id: FaultIds = (), /, *, cluster: ClusterOptions = LOCAL, as_json: AsJson = False
) -> None:
    """End faults and forget them."""
    for fault in _chosen(_faults(cluster), fault_id):
        fault.remove()
        print_done(f"Removed fault {fault.fault_id}.", {"fault_id": fault.fault_id}, as_json=as_json)


def _faults(cluster: ClusterOptions) -> Faults:
    return Faults(RemoteFaultRegistry(cluster.connect))


def _absent(cluster: ClusterOptions) -> tuple[dict[int, tuple[str, ...]], dict[str, int]]:
    """By fault: the partitions that it names and the broker does not have; and how many each topic has."""
    try:
        with cluster.connect() as admin:
            listed = admin.list_faults()
            return {fault.fault_id: fault.absent for fault in listed}, _partition_counts(admin, listed)
    except (CommandFailed, ClientError):  # a fault may already have stopped the broker
        return {}, {}


def _partition_counts(admin: Admin, listed: Sequence[DescribedFault]) -> dict[str, int]:
    """The partition counts of all topics, if a fault names a partition that does not exist; empty without
    the right to list them.
    """
    if not any(fault.absent for fault in listed):
        return {}
    try:
        topics = admin.list_topics()
    except ClientError:
        return {}
    return {topic.topic: len(topic.leaders) for topic in topics}


def _name_absent(fault_id: int, partitions: Sequence[str], partition_counts: Mapping[str, int]) -> None:
    for partition in partitions:
        meant = instead_of(partition_named(partition), partition_counts)
        complain(
            f"fault {fault_id} names partition {partition}, which does not exist yet{meant}",
            then="`fencepost topic list` shows the topics",
        )


def _chosen(faults: Faults, fault_ids: tuple[int, ...]) -> list[FaultHandle]:
    """The faults of these numbers, or all."""
    found = {fault.fault_id: fault for fault in faults.list()}
    if not found:
        raise CommandFailed("the broker has no faults", then="`fencepost fault add` adds one")
    unknown = [number for number in fault_ids if number not in found]
    if unknown:
        raise CommandFailed(f"there is no fault {unknown[0]}", then="`fencepost fault list` shows the faults")
    return [found[number] for number in dict.fromkeys(fault_ids) or found]
