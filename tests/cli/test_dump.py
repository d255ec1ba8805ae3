"""`fencepost dump`: each kind of file in words and as JSON, damage told."""

from __future__ import annotations

import json
import os
from pathlib import Path

import attrs
import pytest

from fencepost.cli.application import run
from fencepost.demo.histories import count_finished_after_restart, count_states, read_histories
from fencepost.journal.indexes import (
    AbortedRange,
    OffsetIndex,
    ProducerSnapshot,
    TimeIndex,
    TransactionIndex,
    encode_snapshot,
)
from fencepost.protocol.consumer_group_log import (
    ConsumerEntry,
    ConsumerRecordKey,
    ConsumerRecordKind,
    CurrentAssignment,
    GroupEpoch,
    ResolvedRegex,
    Subscription,
    TopicIdPartition,
)
from fencepost.protocol.offsets_log import GroupBatch, GroupRecord, MemberRecord, group_batch
from fencepost.protocol.terms import TransactionResult, TransactionState
from tests.cli.log_builder import NOW, build_story, data_batch, marker, write_partition

Output = pytest.CaptureFixture[str]


def test_a_directory_in_words(tmp_path: Path, capsys: Output) -> None:
    assert run(["dump", str(build_story(tmp_path)), "--records"]) == 0
    out = capsys.readouterr().out
    assert not out.startswith("\n"), "a blank line stands between partitions only"
    said = " ".join(out.split())
    for words in (
        "orders-0 00000000000000000000.log",
        "0-1 2 records, producer 7 epoch 0, sequence 0-1, in a transaction",
        '0: "k" -> "apple"',
        '1: "k" -> null',
        "2 COMMIT marker: producer 7 epoch 1, coordinator epoch 1",
        "'pay' Empty, producer 7 epoch 0",
        "'pay' Ongoing (BEGIN), producer 7 epoch 0: orders-0",
        "'pay' PrepareCommit, producer 7 epoch 1: orders-0",
        "'pay' CompleteCommit, producer 7 epoch 1",
        "group 'group' commits offset 5 of orders-0",
        "TopicCreated: topic orders",
    ):
        assert words in said


def test_a_directory_as_json(tmp_path: Path, capsys: Output) -> None:
    assert run(["dump", str(build_story(tmp_path)), "--json", "--records"]) == 0
    facts = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {fact["kind"] for fact in facts} == {
        "batch",
        "record",
        "marker",
        "transaction",
        "offset",
        "cluster",
    }
    states = [fact["state"] for fact in facts if fact["kind"] == "transaction"]
    assert states == ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit"]
    [ended] = [fact for fact in facts if fact["kind"] == "marker"]
    assert (ended["log"], ended["offset"], ended["result"]) == ("orders-0", 2, "COMMIT")


def test_only_the_topics_asked_for(tmp_path: Path, capsys: Output) -> None:
    assert run(["dump", str(build_story(tmp_path)), "--topic", "orders", "--json"]) == 0
    assert {json.loads(line)["log"] for line in capsys.readouterr().out.splitlines()} == {"orders-0"}


def test_what_stands_beside_a_segment(tmp_path: Path, capsys: Output) -> None:
    directory = build_story(tmp_path) / "orders-0"
    offsets, times, aborted = OffsetIndex(), TimeIndex(), TransactionIndex()
    offsets.append(1, 86)
    times.append(NOW, 1)
    aborted.append(AbortedRange(7, first_offset=0, last_offset=2, last_stable_offset=3))
    name = "00000000000000000000"
    (directory / f"{name}.index").write_bytes(offsets.encoded())
    (directory / f"{name}.timeindex").write_bytes(times.encoded())
    (directory / f"{name}.txnindex").write_bytes(bytes(aborted.data))
    remembered = ProducerSnapshot(7, 1, -1, -1, 0, NOW, 1, -1)
    (directory / "00000000000000000003.snapshot").write_bytes(encode_snapshot([remembered]))
    (directory / "manifest.json").write_text('{"format": 1}')
    assert run(["dump", str(directory), "--indexes", "--json"]) == 0
    facts = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    by_kind = {fact["kind"]: fact for fact in facts}
    assert by_kind["index"]["position"] == 86
    assert by_kind["timeindex"]["timestamp_ms"] == NOW
    assert by_kind["aborted"]["last_stable_offset"] == 3
    assert by_kind["producer"]["at"] == 3
    assert by_kind["manifest"]["content"] == {"format": 1}
    assert run(["dump", str(directory), "--indexes"]) == 0
    said = capsys.readouterr().out
    assert "aborted: producer 7, ABORT marker at 2" in said
    assert "is in the batch at byte 86" in said
    assert run(["dump", str(directory / f"{name}.txnindex")]) == 0
    assert "0-2" in capsys.readouterr().out


def test_damage_is_told(tmp_path: Path, capsys: Output) -> None:
    file = write_partition(
        tmp_path, "orders-0", [data_batch([b"one"], epoch=0), marker(TransactionResult.COMMIT, epoch=1)]
    )
    data = bytearray(file.read_bytes())
    data[70] ^= 1  # inside the first batch's records
    file.write_bytes(data[:-5])  # and the second one is torn
    (tmp_path / "orders-0" / "00000000000000000000.snapshot").write_bytes(b"no snapshot")
    assert run(["dump", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "DAMAGED: the checksum does not match" in said
    assert "DAMAGED or incomplete: 73 bytes" in said
    assert said.count("DAMAGED") == 3


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("nothing", "no such file or directory"),
        ("empty", "is not a data directory"),
        ("stranger", "is not a data directory"),
        ("notes.txt", "is not a log file"),
        ("parent", "parent/data?\n"),
        ("parent/data/orders", "parent/data --topic orders?\n"),
        ("parent/data/orders-1", "parent/data?\n"),
        ("parent/data/orders-0/1.log", "parent/data/orders-0?\n"),
    ],
)
def test_what_is_no_log_is_refused_with_advice(tmp_path: Path, capsys: Output, name: str, what: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "stranger" / "polkit-1").mkdir(parents=True)
    (tmp_path / "notes.txt").write_text("no log")
    write_partition(tmp_path / "parent" / "data", "orders-0", [data_batch([b"one"], epoch=0)])
    (tmp_path / "parent" / "data" / "meta.json").touch()
    assert run(["dump", str(tmp_path / name)]) == 2
    said = capsys.readouterr()
    assert what in said.err
    assert said.out == ""


def test_a_device_is_not_a_file(tmp_path: Path, capsys: Output) -> None:
    pipe = tmp_path / f"{0:020d}.log"
    os.mkfifo(pipe)
    for path in ("/dev/null", str(pipe)):
        assert run(["dump", path]) == 2
        assert capsys.readouterr().err == (
            f"fencepost: {path} is a device, a pipe or a socket, not a file\n"
            "  give a data directory, partition directory or log file\n"
        )


@pytest.mark.parametrize(
    "name", ["00000000000000000000.log", "00000000000000000000.txnindex", "manifest.json"]
)
def test_a_pipe_is_refused_at_once(tmp_path: Path, capsys: Output, name: str) -> None:
    directory = tmp_path / "orders-0"
    directory.mkdir()
    (directory / f"{7:020d}.log").touch()
    os.mkfifo(directory / name)
    assert run(["dump", str(directory)]) == 1
    assert f"{name} is a pipe, not a file\n  move it away" in capsys.readouterr().err


def test_a_log_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path, capsys: Output) -> None:
    data = build_story(tmp_path)
    assert run(["dump", str(data)]) == 0
    whole = capsys.readouterr().out
    unread = [data / "a-0" / f"{0:020d}.log", data / "b-0" / "manifest.json"]
    for path in unread:
        path.mkdir(parents=True)
    assert run(["dump", str(data)]) == 1
    said = capsys.readouterr()
    assert whole in said.out
    first, second, *rest = said.err.splitlines()
    assert [first, second] == [f"fencepost: cannot read {path}: Is a directory" for path in unread]
    assert rest[0] == f"fencepost: {data} was not printed whole"
    assert "check the files named above" in rest[1]


def test_a_topic_without_a_log_is_named(tmp_path: Path, capsys: Output) -> None:
    assert run(["dump", str(build_story(tmp_path)), "--topic", "nope"]) == 1
    first, then = capsys.readouterr().err.splitlines()
    assert first.endswith("has no log of a topic nope")
    assert then == "  it has those of __cluster_metadata, __consumer_offsets, __transaction_state, orders"


def test_a_decision_that_was_prepared_by_one_leader_and_completed_by_the_next(tmp_path: Path) -> None:
    histories = read_histories(build_story(tmp_path))
    assert count_finished_after_restart(histories) == 1
    assert count_states(histories, TransactionState.COMPLETE_COMMIT) == 1


def test_who_is_in_a_group(tmp_path: Path, capsys: Output) -> None:
    members = tuple(
        MemberRecord(
            member_id=member_id,
            group_instance_id=None,
            client_id="",
            client_host="",
            rebalance_timeout_ms=1_000,
            session_timeout_ms=1_000,
            subscription=b"",
            assignment=b"",
        )
        for member_id in ("m1", "m2")
    )
    shared = GroupRecord(
        protocol_type="consumer",
        generation_id=3,
        protocol_name="range",
        leader="m2",
        state_since_ms=NOW,
        members=members,
    )
    empty = attrs.evolve(shared, generation_id=4, leader=None, members=())
    entries = [GroupBatch(groups=(("readers", record),)) for record in (shared, empty, None)]
    batches = [group_batch(each, timestamp=NOW) for each in entries]
    write_partition(tmp_path, "__consumer_offsets-0", batches)
    assert run(["dump", str(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for words in (
        "group 'readers' generation 3: m1, m2 (leader)",
        "group 'readers' generation 4: no members",
        "group 'readers' was deleted (tombstone)",
    ):
        assert words in said


def test_who_is_in_a_group_of_the_consumer_protocol(tmp_path: Path, capsys: Output) -> None:
    kind, mine = ConsumerRecordKind, frozenset({TopicIdPartition(bytes(16), 0)})
    subscription = Subscription(
        instance_id=None, rack_id=None, client_id="c", client_host="/h", topics=("orders",), regex="",
        rebalance_timeout_ms=1, assignor=None,
    )  # fmt: skip
    entries: list[ConsumerEntry] = [
        (ConsumerRecordKey(kind.GROUP, "readers"), GroupEpoch(2)),
        (ConsumerRecordKey(kind.MEMBER, "readers", "m1"), subscription),
        (
            ConsumerRecordKey(kind.REGULAR_EXPRESSION, "readers", "o.*"),
            ResolvedRegex(topics=(), version=1, resolved_ms=1),
        ),
        (ConsumerRecordKey(kind.TARGET_MEMBER, "readers", "m1"), mine),
        (ConsumerRecordKey(kind.CURRENT_ASSIGNMENT, "readers", "m1"), CurrentAssignment(epoch=2)),
        (ConsumerRecordKey(kind.MEMBER, "readers", "m2"), None),
    ]
    batch = group_batch(GroupBatch(consumers=tuple(entries)), timestamp=NOW)
    write_partition(tmp_path, "__consumer_offsets-0", [batch])
    assert run(["dump", str(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for words in (
        "group 'readers' group: epoch 2",
        "group 'readers' member of m1: instance None, topics ['orders'], expression",
        "group 'readers' regular expression of o.*: topics []",
        "group 'readers' target member of m1: partitions 1",
        "group 'readers' current assignment of m1: epoch 2, state Stable, assigned 0, revoking 0",
        "group 'readers' member of m2: was deleted (tombstone)",
    ):
        assert words in said
