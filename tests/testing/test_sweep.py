"""The sweep finds a planted bug, passes what is right, and never counts a fault that did not strike."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from threading import Event
from typing import Any

import pytest

from fencepost import Admin, Broker, FaultNeverStruck, Producer, assert_exactly_once, sweep, sweep_points
from fencepost.faults.phrases import BROKER, Point, PointKind
from fencepost.testing.process_recording import ProcessRecording
from fencepost.testing.sweep import (
    LearnedPoints,
    RunHung,
    RunVerdict,
    SweepFailed,
    SweepFault,
    SweepReport,
    SweepRun,
    SweepSettings,
    TimeLimit,
    chosen,
    run_sweep,
)
from fencepost.testing.topic import create_topic

pytest_plugins = ["pytester"]


def sell(broker: Broker) -> None:
    """An application without a bug: the client repeats what was lost, and the broker knows it again."""
    topic = create_topic(broker, "sales")
    with Producer(broker.address, transactional_id="shop", client_id="shop") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send(topic, b"apple").result()
    assert_exactly_once([b"apple"], topic, broker=broker)


def sell_in_haste(broker: Broker) -> None:
    """With a bug: when the broker is away, the same record is sent by another producer, too."""
    topic = create_topic(broker, "sales")
    with Producer(broker.address, client_id="shop") as producer:
        sold = producer.send(topic, b"apple")
        sold.result()
        if any(fault.struck for fault in broker.faults.list()):
            producer.send(topic, b"apple").result()
    assert_exactly_once([b"apple"], topic, broker=broker)


def sell_and_audit(broker: Broker) -> None:
    """With a fault of its own, in a step that is left out after another fault."""
    audited = broker.faults.when("audit sends CreateTopics").do("drop")
    sell(broker)
    if not any(fault.struck for fault in broker.faults.list()):
        with Admin(broker.address, client_id="audit") as admin:
            admin.create_topic("audit")
        audited.wait_until_struck()


# --- the function -------------------------------------------------------------------------------------------


def test_a_correct_application_passes_at_every_point() -> None:
    report = sweep_points(sell)
    report.raise_if_failed()
    assert all(run.struck >= 1 for _, run in report.rows)
    points = list(dict.fromkeys(fault.point for fault, _ in report.rows))
    assert points == [
        "shop sends InitProducerId",
        "coordinator of shop appends EMPTY",
        "shop sends Produce",
        "coordinator of shop appends ONGOING",
        "shop sends EndTxn",
        "coordinator of shop appends PREPARE_COMMIT",
        "coordinator of shop appends COMPLETE_COMMIT",
    ]
    assert len(report.rows) == 3 * 3 + 4
    assert report.summary == "sell: 13 faults: 13 passed"


def test_a_planted_bug_is_found_and_can_be_repeated() -> None:
    report = sweep_points(sell_in_haste)
    with pytest.raises(SweepFailed) as raised:
        report.raise_if_failed()
    assert isinstance(raised.value, AssertionError)
    told = str(raised.value)
    assert "  when broker sends Produce reply to shop do drop\n" in told
    assert "duplicated   apple: sales-0 offset 0 (producer 0 epoch 0); sales-0 offset 1" in told
    fault, _ = report.failures[0]
    with Broker() as broker:
        broker.faults.add(fault.text)
        with pytest.raises(AssertionError, match="duplicated"):
            sell_in_haste(broker)


def test_what_fails_without_a_fault_is_raised_as_it_is() -> None:
    def fail(_: Broker) -> None:
        raise KeyError("no fault needed")

    with pytest.raises(KeyError):
        sweep_points(fail)


def test_a_fault_of_its_own_must_strike_without_a_fault_of_the_sweep() -> None:
    def sell_under_a_wrong_fault(broker: Broker) -> None:
        broker.faults.when("shop sends TxnOffsetCommit").do("drop")
        sell(broker)

    with pytest.raises(FaultNeverStruck, match="shop sends TxnOffsetCommit"):
        sweep_points(sell_under_a_wrong_fault)


def test_a_fault_of_its_own_need_not_strike_with_a_fault_of_the_sweep() -> None:
    report = sweep_points(sell_and_audit, clients=["shop"], only=["EndTxn"])
    assert report.summary == "sell_and_audit: 3 faults: 3 passed"


@pytest.mark.parametrize(
    ("wanted", "because"),
    [
        ({"only": ["EndTxn", "EndTxnn"]}, r"only=\['EndTxnn'\].* EndTxn, "),
        ({"clients": ["shopp"]}, r"clients=\['shopp'\].*which has shop$"),
        ({"clients": ["shop"], "only": ["CreateTopics"]}, "There is nothing to sweep"),
    ],
)
def test_a_sweep_that_would_test_less_than_it_was_asked_for_fails(
    wanted: dict[str, list[str]], because: str
) -> None:
    with pytest.raises(SweepFailed, match=because):
        sweep_points(sell, clients=wanted.get("clients", ()), only=wanted.get("only", ()))


def test_a_sweep_of_too_many_points_is_refused_unless_some_are_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Points that are left out in silence would count as passed."""
    monkeypatch.setattr("fencepost.testing.sweep.POINTS_MAX", 6)
    because = r"The test has 7 points, .* 13 runs.* at most 6: choose some of its faults with points="
    with pytest.raises(SweepFailed, match=because):
        sweep_points(sell)
    assert sweep_points(sell, clients=["shop"], only=["EndTxn"]).learned == 3
    assert sweep_points(sell, points=1).summary == "sell: 1 faults of 13, chosen with seed 0: 1 passed"


def test_a_sweep_knows_every_point_of_a_long_test() -> None:
    learned_points = LearnedPoints(SweepSettings(points=1))
    for _ in range(1_200):
        learned_points.add(Point(kind=PointKind.SENDS, who="shop", what="Produce", whom=BROKER))
    assert (len(learned_points.faults()), learned_points.missing()) == (3_600, "")
    assert learned_points.faults()[-1].point == "shop sends Produce #1200"


def test_a_join_of_the_consumer_protocol_is_swept_and_later_heartbeats_are_not() -> None:
    def swept(**settings: Any) -> list[str]:
        learned_points = LearnedPoints(SweepSettings(**settings))
        for who in ("one", "one", "other", "one", "my app", "my app"):
            learned_points.add(
                Point(kind=PointKind.SENDS, who=who, what="ConsumerGroupHeartbeat", whom=BROKER)
            )
            learned_points.add(Point(kind=PointKind.SENDS, who=who, what="Heartbeat", whom=BROKER))
        return list(dict.fromkeys(fault.point for fault in learned_points.faults()))

    joins = ["one sends ConsumerGroupHeartbeat", "other sends ConsumerGroupHeartbeat"]
    assert swept() == joins
    assert swept(clients=["other"]) == joins[1:]
    assert "one sends ConsumerGroupHeartbeat #3" in swept(only=["ConsumerGroupHeartbeat"])


def test_names_with_spaces_are_swept_as_anyone() -> None:
    def sell_spaciously(broker: Broker) -> None:
        topic = create_topic(broker, "sales")
        for client_id in ("till", "my till"):
            name = f"the shop of {client_id}"
            with Producer(broker.address, transactional_id=name, client_id=client_id) as producer:
                producer.init_transactions()
                with producer.transaction():
                    producer.send(topic, b"apple").result()

    report = sweep_points(sell_spaciously, only=["EndTxn", "PREPARE_COMMIT"])
    report.raise_if_failed()
    assert {fault.point for fault, _ in report.rows} == {
        "till sends EndTxn",
        "coordinator of * appends PREPARE_COMMIT",
        "* sends EndTxn #2",
        "coordinator of * appends PREPARE_COMMIT #2",
    }


# --- the choice ---------------------------------------------------------------------------------------------

MANY = [SweepFault(f"point {number}", "reply lost", f"fault {number}") for number in range(30)]


def test_a_seed_chooses_the_same_faults_in_their_order() -> None:
    first = chosen(MANY, SweepSettings(seed=7, points=10))
    assert first == chosen(MANY, SweepSettings(seed=7, points=10))
    assert [fault for fault in MANY if fault in first] == first
    assert len(first) == 10
    assert first != chosen(MANY, SweepSettings(seed=8, points=10))
    assert chosen(MANY, SweepSettings()) == chosen(MANY, SweepSettings(points=99)) == MANY


# --- verdicts -----------------------------------------------------------------------------------------------


def test_a_fault_that_never_struck_is_tried_again_and_fails_the_sweep() -> None:
    tried: list[str] = []

    def run(text: str) -> SweepRun:
        tried.append(text)
        return SweepRun(failure="")

    report = run_sweep("a test", MANY[:1], SweepSettings(), run)
    assert tried == ["fault 0"] * 3
    assert report.rows[0][1].verdict is RunVerdict.NEVER_STRUCK
    with pytest.raises(SweepFailed, match="1 never struck"):
        report.raise_if_failed()


def test_the_table_of_a_long_sweep_shows_what_did_not_pass() -> None:
    passed, failed = SweepRun(failure="", struck=1), SweepRun(failure="broken", struck=1)
    rows = tuple((fault, failed if place == 25 else passed) for place, fault in enumerate(MANY))
    report = SweepReport(title="a test", seed=0, learned=30, rows=rows)
    lines = report.table(10).splitlines()
    assert [line for line in lines if "FAILED" in line] == ["26  point 25  reply lost  1       FAILED"]
    assert lines[-1] == "... and 20 more that passed"
    assert len(report.table().splitlines()) == 31


def test_a_run_that_hangs_is_stopped_however_it_catches_errors() -> None:
    def hang() -> None:
        while True:
            try:
                Event().wait()
            except Exception:  # noqa: BLE001, S112 - what the limit must get through
                continue

    limit = TimeLimit(0.05)
    with pytest.raises(RunHung), limit.kept(Event().set):
        hang()
    assert limit.is_over


def test_an_application_that_exits_under_a_fault_has_failed() -> None:
    def sell_or_exit(broker: Broker) -> None:
        sell(broker)
        if any(fault.struck for fault in broker.faults.list()):
            sys.exit(0)

    report = sweep_points(sell_or_exit, only=["EndTxn"])
    assert {run.verdict for _, run in report.rows} == {RunVerdict.FAILED}


def test_a_call_that_never_returns_ends_the_process(tmp_path: Path) -> None:
    program = """
        import signal
        from functools import partial
        from fencepost.testing import sweep

        sweep.GIVE_UP_AFTER_S = 0.05
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])  # as deaf as a call in C
        with sweep.TimeLimit(0.05).kept(partial(sweep.end_process, "when shop sends Produce do drop")):
            signal.sigwait([signal.SIGUSR1])
        """
    done = subprocess.run(
        [sys.executable, "-c", dedent(program)], capture_output=True, text=True, cwd=tmp_path, timeout=300
    )
    assert done.returncode == 1
    assert 'HUNG: the run under the fault "when shop sends Produce do drop" cannot be stopped' in done.stderr
    assert 'File "<string>", line 9 in <module>' in done.stderr


# --- in pytest ----------------------------------------------------------------------------------------------

SWEPT = """
    import pytest
    import fencepost

    runs = []

    @pytest.fixture(scope="module")
    def made_once():
        runs.append("module")

    @fencepost.sweep{settings}
    def test_sales(fencepost_broker, fencepost_topic, made_once):
        runs.append("run")
        with fencepost.Producer(fencepost_broker.address, client_id="shop") as producer:
            producer.send(fencepost_topic, b"apple").result()
            if {bug} and fencepost_broker.faults.list()[0].struck:
                producer.send(fencepost_topic, b"apple").result()
        fencepost.assert_committed(fencepost_topic, [b"apple"], broker=fencepost_broker)

    def test_after_it():
        assert runs == ["module", *["run"] * {runs}]
    """


def test_a_swept_test_is_one_test_with_fresh_brokers(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SWEPT.format(settings="", bug=False, runs=7))
    result = pytester.runpytest("-rP", "--strict-markers")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*test_sales: 6 faults: 6 passed", "* point * fault * struck * verdict"])


def test_a_failure_shows_table_faults_and_drawing_of_the_first(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_shop=SWEPT.format(settings="", bug="len(runs) > 2", runs=7))
    result = pytester.runpytest("--fencepost-output", "artefacts")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "test_shop.py::test_sales: 6 faults: 6 FAILED",
            "1 *shop sends InitProducerId *request lost *1 *FAILED",
            "To repeat a run that did not pass*",
            "  when shop sends InitProducerId do drop",
            "The first of them (when shop sends InitProducerId do drop):",
            "*duplicated   apple*",
            "*fencepost: what happened*",
            "*⚡*",
            "saved in artefacts/test_shop.py-test_sales: sweep.txt, table.txt, drawing.svg, page.html",
        ]
    )
    saved = pytester.path / "artefacts" / "test_shop.py-test_sales"
    assert sorted(path.name for path in saved.iterdir()) == [
        "drawing.svg",
        "page.html",
        "sweep.txt",
        "table.txt",
    ]
    assert "broker killed" in (saved / "sweep.txt").read_text()


def test_a_seed_chooses_points(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SWEPT.format(settings="(seed=7, points=2)", bug=False, runs=3))
    result = pytester.runpytest("-rP")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*test_sales: 2 faults of 6, chosen with seed 7: 2 passed"])


def test_async_tests_are_swept_too(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        import fencepost

        async def sell(broker, topic):
            async with fencepost.AsyncProducer(broker.address, client_id="shop") as producer:
                await (await producer.send(topic, b"apple"))
            fencepost.assert_committed(topic, [b"apple"], broker=broker)

        @fencepost.sweep
        @pytest.mark.trio
        async def test_on_trio(fencepost_broker, fencepost_topic):
            await sell(fencepost_broker, fencepost_topic)

        @fencepost.sweep(points=3)
        @pytest.mark.anyio
        @pytest.mark.parametrize("anyio_backend", ["asyncio"])
        async def test_on_asyncio(fencepost_broker, fencepost_topic, anyio_backend):
            await sell(fencepost_broker, fencepost_topic)
        """
    )
    result = pytester.runpytest("-rP")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*6 faults: 6 passed", "*3 faults of 6, chosen with seed 0: 3 passed"])


@pytest.mark.thorough
@pytest.mark.parametrize(("bug", "outcomes"), [(False, {"passed": 1}), (True, {"failed": 1})])
def test_a_broker_process_is_swept_at_the_same_points(
    pytester: pytest.Pytester, bug: bool, outcomes: dict[str, int]
) -> None:
    pytester.makepyfile(
        test_shop=f"""
        import fencepost

        @fencepost.sweep
        def test_sales(fencepost_broker_process, fencepost_topic):
            broker = fencepost_broker_process
            with fencepost.Admin(broker.address) as admin:
                admin.list_faults()
            with fencepost.Producer(broker.address, transactional_id="shop", client_id="shop") as producer:
                producer.init_transactions()
                with producer.transaction():
                    producer.send(fencepost_topic, b"apple").result()
                if {bug} and any(fault.struck for fault in broker.faults.list()):
                    with producer.transaction():
                        producer.send(fencepost_topic, b"apple").result()
            fencepost.assert_committed(fencepost_topic, [b"apple"], broker=broker)
        """
    )
    result = pytester.runpytest("-rP")
    result.assert_outcomes(**outcomes)
    verdict = "FAILED" if bug else "passed"
    result.stdout.fnmatch_lines(
        [
            f"*test_sales: 13 faults: 13 {verdict}",
            f"1 *shop sends InitProducerId *request lost *1 *{verdict}",
            f"4 *coordinator of shop appends EMPTY *broker killed *1 *{verdict}",
            f"12 *coordinator of shop appends PREPARE_COMMIT *broker killed *1 *{verdict}",
        ]
    )


def test_a_process_whose_recording_has_lost_its_first_events_is_not_swept(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The points that are left would have wrong numbers, and a name may be missing because of that."""
    monkeypatch.setattr(ProcessRecording, "is_cut", True)
    pytester.makepyfile(
        """
        import fencepost

        @fencepost.sweep(points=1, clients=["nobody"])
        def test_it(fencepost_broker_process, fencepost_topic):
            with fencepost.Producer(fencepost_broker_process.address, client_id="shop") as producer:
                producer.send(fencepost_topic, b"apple").result()
        """
    )
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*the recording of its broker process has lost its first events*"])


def test_a_run_that_hangs_is_told_from_one_that_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from threading import Event
        import fencepost

        @fencepost.sweep(points=1, time_limit=0.5)
        def test_it(fencepost_broker, fencepost_topic):
            if fencepost_broker.faults.list():
                Event().wait()
            with fencepost.Producer(fencepost_broker.address, client_id="shop") as producer:
                producer.send(fencepost_topic, b"apple").result()
        """
    )
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*1 faults of 6, *: 1 HUNG", "*the run was not over after 0.5 s*"])


def test_a_failure_without_a_word_is_a_failure(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import fencepost
        import pytest

        @fencepost.sweep(only=["Produce"])
        def test_it(fencepost_broker, fencepost_topic):
            with fencepost.Producer(fencepost_broker.address) as producer:
                producer.send(fencepost_topic, b"apple").result()
            if any(fault.struck for fault in fencepost_broker.faults.list()):
                pytest.fail(pytrace=False)
        """
    )
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*3 faults: 3 FAILED*", "*pytest.fail() does if it is given no reason*"])


def test_a_swept_test_may_get_its_broker_from_another_fixture(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from threading import Event
        import fencepost
        import pytest

        @pytest.fixture
        def broker(request):
            return request.getfixturevalue("fencepost_broker")

        @fencepost.sweep(only=["Produce"], time_limit=0.5)
        def test_it(broker, fencepost_topic):
            with fencepost.Producer(broker.address) as producer:
                producer.send(fencepost_topic, b"apple").result()
            if any(fault.struck for fault in broker.faults.list()):
                Event().wait()
        """
    )
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*3 faults: 3 HUNG*"])


def test_a_test_that_fails_without_a_fault_fails_as_any_other(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import fencepost

        @fencepost.sweep
        def test_it(fencepost_broker):
            assert 1 == 2
        """
    )
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    told = [
        "*assert 1 == 2*",
        "*the run without a fault failed, so no fault was tried*",
        "*fencepost: what happened*",
    ]
    result.stdout.fnmatch_lines(told)
    assert "faults" not in result.stdout.str()


@pytest.mark.parametrize("fixture", ["fencepost_broker", "fencepost_broker_process"])
def test_a_fault_of_its_own_that_never_struck_fails_the_run_without_a_fault(
    pytester: pytest.Pytester, fixture: str
) -> None:
    pytester.makepyfile(
        f"""
        import fencepost

        @fencepost.sweep
        def test_it({fixture}, fencepost_topic):
            {fixture}.faults.when("shop sends TxnOffsetCommit").do("drop")
            with fencepost.Producer({fixture}.address, client_id="shop") as producer:
                producer.send(fencepost_topic, b"apple").result()
        """
    )
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*FaultNeverStruck: *shop sends TxnOffsetCommit*", "*what happened*"])
    assert "6 faults" not in result.stdout.str()


def test_a_fault_of_its_own_strikes_in_the_run_without_a_fault_and_may_not_in_others(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import fencepost
        from tests.testing.test_sweep import sell_and_audit

        @fencepost.sweep(clients=["shop"], only=["EndTxn"])
        def test_it(fencepost_broker):
            sell_and_audit(fencepost_broker)
        """
    )
    result = pytester.runpytest("-rP")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*test_it: 3 faults: 3 passed"])


def test_a_test_that_asks_nothing_cannot_be_swept(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import fencepost

        @fencepost.sweep
        def test_it():
            pass
        """
    )
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*There is nothing to sweep*"])
    pytester.runpytest("--setup-only").assert_outcomes()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"points": "3"}, "points='3' is not a whole number"),
        ({"points": True}, "points=True is not a whole number"),
        ({"points": 0}, "points=0 is not above 0"),
        ({"points": 1.5}, "points=1.5 is not a whole number"),
        ({"down_ms": "x"}, "down_ms='x' is not a whole number"),
        ({"down_ms": -1}, "down_ms=-1 is"),
        ({"seed": "a"}, "seed='a' is not a whole number"),
        ({"time_limit": "1"}, "time_limit='1' is not a number"),
        ({"time_limit": 0}, "time_limit=0 is not above 0"),
        ({"time_limit": float("inf")}, "time_limit=inf is not above 0, or has no end"),
        ({"time_limit": float("nan")}, "time_limit=nan"),
        ({"clients": 3}, "clients=3 is not a list of names"),
        ({"only": ["EndTxn", 3]}, "only has 3, which is not a name"),
        ({"pionts": 3}, "a sweep has no option pionts; it has seed, points"),
    ],
)
def test_an_option_is_checked_where_it_is_written(options: dict[str, Any], says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(says)):
        sweep(**options)
    if "pionts" not in options:
        with pytest.raises((TypeError, ValueError), match=re.escape(says)):
            sweep_points(sell, **options)
    with pytest.raises(TypeError, match="3 is not a test"):
        sweep(3)  # type: ignore[arg-type] - the point of the test


def test_ctrl_c_tells_what_a_sweep_has_found() -> None:
    faults = [SweepFault(name, "request lost", f"when {name} do drop") for name in ("a", "b", "c")]

    def run(text: str) -> SweepRun:
        if " c " in text:
            raise KeyboardInterrupt
        return SweepRun(failure="no" * (" b " in text), struck=1)

    with pytest.raises(KeyboardInterrupt) as ended:
        run_sweep("sells", faults, SweepSettings(), run)
    assert str(ended.value) == "sells: 2 of 3 faults were tried; did not pass: when b do drop"
