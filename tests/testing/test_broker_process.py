"""A broker in a process of its own: what an embedded broker does, and no process is left behind."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fencepost import Admin, BrokerFailed, BrokerProcess, FaultNeverStruck, Producer
from fencepost.broker.contract import ReplyTo
from fencepost.broker.faults import NoSuchFault
from fencepost.faults.grammar import BadPhrase
from fencepost.faults.phrases import FAULTS_HELP
from fencepost.journal.storage import DirectoryInUse
from fencepost.protocol.frames import RequestFrame
from fencepost.protocol.messages import ListGroups
from fencepost.simulator.world.history import Sent, Struck
from fencepost.testing import process_recording
from fencepost.testing.broker_process import _Child
from fencepost.testing.fault_registry import ProcessFaultRegistry
from tests.broker.test_lifecycle import EVENTS, commit, committed, make_topic, write

PATIENCE_S = 300.0
ONE_PARTITION = {"transaction.state.log.num.partitions": 1}


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for_end(descriptor: int) -> None:
    """Return when the process of this descriptor has ended."""
    [ended], _, _ = select.select([descriptor], [], [], PATIENCE_S)
    os.close(ended)


def test_a_life_of_stops_kills_and_power_cuts(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", sync="commit", override=ONE_PARTITION) as broker:
        address, pids = broker.address, [broker.pid]
        assert address == broker.bootstrap_servers == f"127.0.0.1:{broker.port}"
        with pytest.raises(BrokerFailed, match="is running"):
            broker.start()
        make_topic(broker)
        write(broker, b"1")
        broker.kill()
        assert (broker.is_running, broker.address) == (False, address)
        with pytest.raises(BrokerFailed, match="is down"):
            broker.kill()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", broker.port))
        broker.restart()
        pids.append(broker.pid)
        write(broker, b"2")
        with Producer(broker.address) as producer:
            producer.send(EVENTS.topic, b"in no transaction").result()
        broker.power_cut()
        broker.restart()
        pids.append(broker.pid)
        left = committed(broker)
        # The last one may be lost; the sync of a marker before it may also have taken it along.
        assert left in ([b"1", b"2"], [b"1", b"2", b"in no transaction"])
        broker.restart()
        assert committed(broker) == left
        pids.append(broker.pid)
    assert broker.output.count('"ready": true') == len(set(pids)) == 4
    assert not any(map(is_alive, pids))
    assert (tmp_path / "data" / "clean-shutdown.json").exists()


def test_without_syncs_a_power_cut_loses_what_was_acknowledged(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, override=ONE_PARTITION) as broker:
        make_topic(broker)
        write(broker, b"kept")
        broker.restart()  # a clean stop syncs
        write(broker, b"lost")
        assert not broker.has_lost_data
        broker.power_cut()
        assert broker.has_lost_data
        broker.restart()
        assert committed(broker) == [b"kept"]


def test_a_fault_kills_it_and_the_client_goes_on(tmp_path: Path) -> None:
    fault = "when coordinator of writer appends PREPARE_COMMIT #2 do crash broker until after 50 ms"
    with BrokerProcess(tmp_path, faults=[fault], override=ONE_PARTITION) as broker:
        make_topic(broker)
        write(broker, b"1", b"2", b"3")
        assert committed(broker) == [b"1", b"2", b"3"]
    assert broker.output.count('"ready": true') == 2


def test_a_fault_that_kills_it_for_good(tmp_path: Path) -> None:
    fault = "when coordinator of writer appends PREPARE_COMMIT do crash broker"
    with BrokerProcess(tmp_path, faults=[fault], override=ONE_PARTITION) as broker:
        make_topic(broker)
        with ThreadPoolExecutor(1) as other, Producer(broker.address, transactional_id="writer") as producer:
            producer.init_transactions()
            committing = other.submit(commit, producer, b"1")
            wait_for_end(os.pidfd_open(broker.pid))
            broker.restart()
            committing.result(PATIENCE_S)
        assert committed(broker) == [b"1"]


def test_faults_come_and_go_and_outlive_the_process(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, faults=["when shop sends CreateTopics do drop"]) as broker:
        with Admin(broker.address, client_id="shop") as admin:
            admin.create_topic(EVENTS.topic)
        (created,) = broker.faults.list()
        created.wait_until_struck(PATIENCE_S)
        later = broker.faults.when("broker sends EndTxn reply", nth=2).do("drop")
        crash = broker.faults.when("coordinator of writer appends PREPARE_COMMIT").do("crash broker")
        with pytest.raises(BadPhrase, match="never syncs") as refused:
            broker.faults.add("when at 3 s do fail syncs of events-0")
        assert refused.value.__notes__ == [FAULTS_HELP]
        with ThreadPoolExecutor(1) as other:
            writing = other.submit(write, broker, b"1", b"2", b"3")
            crash.wait_until_struck(PATIENCE_S)
            with pytest.raises(FaultNeverStruck, match="EndTxn reply #2"):
                later.wait_until_struck(0)
            broker.restart()
            writing.result(PATIENCE_S)
        assert [fault.struck for fault in (created, crash)] == [1, 1], "they were not asked for again"
        later.wait_until_struck(PATIENCE_S)
        assert committed(broker) == [b"1", b"2", b"3"]
        crash.remove()
        with pytest.raises(NoSuchFault):
            crash.end()


def test_a_fault_that_never_struck_fails_the_test(tmp_path: Path) -> None:
    fault = "when shp sends CreateTopics do drop"
    with (
        pytest.raises(FaultNeverStruck, match="shop sends CreateTopics"),
        BrokerProcess(tmp_path, faults=[fault]) as broker,
        Admin(broker.address, client_id="shop") as admin,
    ):
        admin.create_topic(EVENTS.topic)
    assert f'the fault "{fault}" never struck' in broker.output, "the process says so, too"


def test_it_ignores_the_modules_in_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outcome.py").write_text(
        "raise SystemExit('not the library that trio imports')", encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    with BrokerProcess(tmp_path / "data") as broker:
        assert broker.is_running


def test_what_goes_wrong_is_told_in_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(
        BrokerFailed, match=r"exit code 2[^|]*has no setting num\.partition[^|]*num\.partitions"
    ):
        BrokerProcess(tmp_path, override={"num.partition": 3}).start()
    with BrokerProcess(tmp_path):
        with pytest.raises(DirectoryInUse, match="in use by a broker"):
            BrokerProcess(tmp_path).start()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"directory": "data", "port": 70_000}, ValueError),
        ({"directory": "data", "sync": "foo"}, ValueError),
        ({"directory": __file__}, ValueError),
        ({"directory": None}, TypeError),
        ({"directory": "data", "options": "--log-level debug"}, TypeError),
        ({"directory": "data", "faults": "when p sends EndTxn do hold"}, TypeError),
    ],
)
def test_wrong_arguments_are_refused_at_the_call(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        BrokerProcess(**arguments)


# It runs until its input ends, so that its broker is alive while the test looks for it.
PROGRAM = """
import sys, fencepost
broker = fencepost.BrokerProcess(sys.argv[1]).start()
print(broker.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("end", ["returned", "killed"])
def test_no_process_outlives_the_program_that_started_it(tmp_path: Path, end: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as program:  # fmt: skip
        assert program.stdin is not None
        assert program.stdout is not None
        descriptor = os.pidfd_open(int(program.stdout.readline()))
        if end == "killed":
            program.kill()
        program.stdin.close()
        program.wait(PATIENCE_S)
    wait_for_end(descriptor)


def test_no_process_outlives_its_object(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, faults=["when shop sends CreateTopics do drop"], record=True).start()
    broker.kill()
    broker.restart()
    descriptor, faults, collected = os.pidfd_open(broker.pid), broker.faults, weakref.ref(broker)
    del broker
    gc.collect()
    assert collected() is None
    wait_for_end(descriptor)
    assert [fault.struck for fault in faults.list()] == [0], "what is left of it can be asked"


def test_the_thread_that_reads_its_output_may_be_the_one_that_collects_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, is_added = set(threading.enumerate()), threading.Event()

    def collect(*_: object) -> None:
        is_added.wait(PATIENCE_S)
        brokers.clear()

    monkeypatch.setattr(ProcessFaultRegistry, "on_strike", collect)
    brokers = [BrokerProcess(tmp_path).start()]
    descriptor = os.pidfd_open(brokers[0].pid)
    brokers[0].faults.add("when at 1 ms do clock of broker +1 s")
    is_added.set()
    wait_for_end(descriptor)
    for thread in set(threading.enumerate()) - threads:
        thread.join(PATIENCE_S)  # pytest fails this test if an error was raised there


def objects_of(pids: Iterable[int]) -> list[int]:
    """Those of these processes that this program still has an object for."""
    gc.collect()
    kept = [each.pid for each in gc.get_objects() if type(each) is subprocess.Popen]
    return sorted(set(kept).intersection(pids))


def test_a_process_that_has_ended_is_forgotten(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        pids = [broker.pid]
        broker.kill()
        pids.append(broker.start().pid)
        broker.power_cut()
        pids.append(broker.start().pid)
        pids.append(broker.restart().pid)
        descriptor = os.pidfd_open(broker.pid)
        os.kill(broker.pid, signal.SIGKILL)  # as a machine without memory does, or a fault
        wait_for_end(descriptor)
        pids.append(broker.start().pid)
        assert len(set(pids)) == 5
        assert objects_of(pids) == [broker.pid]
    assert objects_of(pids) == []


def test_a_start_after_a_crash_waits_for_the_last_line_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that the fault has struck. Otherwise the next process would have the fault again."""
    is_ended, on_strike, end = threading.Event(), ProcessFaultRegistry.on_strike, _Child.end

    def slow_strike(registry: ProcessFaultRegistry, struck: Mapping[str, Any]) -> None:
        is_ended.wait(PATIENCE_S)
        on_strike(registry, struck)

    def noted_end(child: _Child, how: signal.Signals | None = None) -> int:
        is_ended.set()
        return end(child, how)

    monkeypatch.setattr(ProcessFaultRegistry, "on_strike", slow_strike)
    monkeypatch.setattr(_Child, "end", noted_end)
    with BrokerProcess(tmp_path) as broker, ThreadPoolExecutor(1) as other:
        broker.faults.add("when shop sends Metadata do crash broker")
        descriptor = os.pidfd_open(broker.pid)
        with Admin(broker.address, client_id="shop", default_api_timeout_ms=20_000) as admin:
            asked = other.submit(admin.list_topics)
            wait_for_end(descriptor)
            broker.start()
            assert asked.result(PATIENCE_S) == []


def test_a_recording_goes_through_all_lives(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, override=ONE_PARTITION, record=True) as broker:
        make_topic(broker)
        write(broker, b"1")
        broker.kill()
        broker.restart()
        write(broker, b"2")
        assert broker.recording is not None
        events = broker.recording.history().events
    assert [event.label for event in events if isinstance(event, Struck)] == ["crash", "restart"]
    assert [event.at for event in events] == sorted(event.at for event in events)
    sent = [event for event in events if isinstance(event, Sent)]
    assert len({event.number for event in sent}) == len(sent)
    commits = [event for event in sent if event.label.startswith("EndTxn") and event.answers is None]
    assert len(commits) == 2
    answered = {event.answers for event in sent}
    assert {event.number for event in commits} <= answered, "each commit has its reply"


def test_a_file_that_is_full_keeps_the_last_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_recording, "EVENTS_KEPT", 4)
    recording = process_recording.ProcessRecording()
    child = process_recording.FileRecording.to(recording.next_life())
    for number in range(11):
        child.struck(f"fault {number}", None)
    shown = [event.label for event in recording.history().events if isinstance(event, Struck)]
    assert shown == [f"fault {number}" for number in (7, 8, 9, 10)]


def record_request(child: process_recording.FileRecording, client_id: str) -> None:
    """A request of this client has arrived."""
    to, request = ReplyTo(connection=1, correlation_id=1), ListGroups(states=())
    child.asked(to, RequestFrame(request, correlation_id=1, version=0, client_id=client_id))


def test_the_points_of_a_sweep_are_all_that_the_files_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is shown has a limit for all lives together; each life has files of its own."""
    monkeypatch.setattr(process_recording, "EVENTS_KEPT", 4)
    recording = process_recording.ProcessRecording()
    lives = [process_recording.FileRecording.to(recording.next_life()) for _ in range(2)]
    for life, child in enumerate(lives):
        for number in range(6):
            record_request(child, f"shop-{life}-{number}")
    assert len(recording.history().events) == 4
    heard = [f"shop-{life}-{number}" for life in range(2) for number in range(6)]
    assert ([point.who for point in recording.points()], recording.is_cut) == (heard, False)
    for number in range(6, 9):
        record_request(lives[1], f"shop-1-{number}")
    left = [*heard[:6], *(f"shop-1-{number}" for number in range(4, 9))]
    assert ([point.who for point in recording.points()], recording.is_cut) == (left, True)


def test_a_recording_on_a_full_disk_ends_and_the_broker_goes_on(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, options=("--record-to", "/dev/full")) as broker:
        make_topic(broker)
        write(broker, b"a", b"b")
        assert committed(broker) == [b"a", b"b"]
    assert broker.output.count("the recording of this process ends here: No space left on device") == 1
    assert "bug" not in broker.output
