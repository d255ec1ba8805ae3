"""The shipped stories come out as they say; what does not is told, and a run is the same every time."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from fencepost.protocol.terms import TopicPartition
from fencepost.simulator.run_result import RunResult
from fencepost.simulator.scenarios.builder import Builder, scenario
from fencepost.simulator.scenarios.files import scenario_of, text_of
from fencepost.simulator.scenarios.model import RULE_NAMES, Case, cases
from fencepost.simulator.scenarios.runner import record_case, run, run_case
from fencepost.simulator.scenarios.verdicts import log_words
from fencepost.simulator.world.history import Arrived, History, Lost, Sent, Struck
from fencepost.simulator.world.processes import WARNED
from tests.simulator.planting import Edit, Mutation, planted

FOLDER = Path(__file__).resolve().parent.parent.parent / "scenarios"
FILES = sorted(FOLDER.glob("*.toml"))
SHIPPED = [case for path in FILES for case in cases(scenario_of(path.read_text(), path.name))]


@pytest.mark.parametrize("case", SHIPPED, ids=lambda case: case.name)
def test_a_shipped_story_comes_out_as_it_says(case: Case) -> None:
    report = run_case(case)
    assert report.problems == ()
    assert report.struck, "a story is about something that goes wrong"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_shipped_story_is_told_for_people(path: Path) -> None:
    story = scenario_of(path.read_text(), path.name)
    assert len(story.lesson) > 100
    assert story.expect.reaches
    assert f"`{path.stem}`" in (FOLDER / "README.md").read_text()


def zombie() -> Builder:
    """Somebody is paused before his commit, and another one takes his place."""
    return (
        scenario("zombie", "Whoever was replaced is fenced.")
        .producer("old", "init", "begin", "send t-0 a", "commit", transactional_id="app")
        .producer("new", "init", "begin", "send t-0 b", "commit", transactional_id="app", starts="on request")
        .when("old receives Produce reply")
        .do("pause old", until="new receives EndTxn reply")
        .when("old pauses")
        .do("start new")
    )


def lost_ack() -> Builder:
    """An acknowledgement is lost."""
    return (
        scenario("lost ack")
        .producer("p", "send t-0 a", "flush")
        .when("node 1 sends Produce reply to p")
        .do("drop")
    )


def held() -> Builder:
    """What is produced is late."""
    return scenario("held").producer("p", "send t-0 a", "flush").when("p sends Produce").do("hold")


def only(builder: Builder) -> RunResult:
    """The report of a scenario that has one case."""
    (report,) = run(builder.scenario())
    return report


def test_the_same_story_is_the_same_run() -> None:
    one, other = only(zombie()), only(zombie())
    assert one == other
    assert one.digest != only(lost_ack()).digest


def test_who_looks_on_changes_nothing() -> None:
    (case,) = cases(zombie().scenario())
    recorded = record_case(case)
    report, history = recorded.result, recorded.history
    assert report == run_case(case)
    assert history.participants == ("old", "new", "node 1")


def test_a_case_says_in_words_how_it_differs() -> None:
    titles = {case.name for case in SHIPPED}
    assert "duplicate after a lost acknowledgement (broken dedup)" in titles
    assert "out-of-order sequence (sync all)" in titles
    assert "hanging transaction (partition_verification on)" in titles


def test_a_node_is_back_before_it_does_anything() -> None:
    case = next(case for case in SHIPPED if case.name == "marker twice")
    recorded = record_case(case)
    history = recorded.history
    crashed, restarted = (at for at, event in enumerate(history.events) if isinstance(event, Struck))
    sent_between = [event for event in history.events[crashed:restarted] if isinstance(event, Sent)]
    assert sent_between == []


def test_a_process_is_told_to_be_awake_before_it_acts() -> None:
    (case,) = cases(zombie().scenario())
    recorded = record_case(case)
    history = recorded.history
    struck = {event.label: at for at, event in enumerate(history.events) if isinstance(event, Struck)}
    sent = [
        at for at, event in enumerate(history.events) if isinstance(event, Sent) and event.source == "old"
    ]
    came = [at for at, event in enumerate(history.events) if isinstance(event, Arrived)]
    asleep = range(struck["pause"], struck["resume"])
    assert not [at for at in sent if at in asleep]
    assert not [at for at in came if at in asleep and _arrives_at(history, at) == "old"]


def _arrives_at(history: History, at: int) -> str:
    arrived = history.events[at]
    assert isinstance(arrived, Arrived)
    return next(e.target for e in history.events if isinstance(e, Sent) and e.number == arrived.number)


def test_a_late_request_is_seen_to_be_refused_though_nobody_waits() -> None:
    case = next(case for case in SHIPPED if case.name == "late EndTxn (transaction_version 2)")
    recorded = record_case(case)
    history = recorded.history
    late = next(event.number for event in history.events if isinstance(event, Struck) and event.number)
    came = history.events.index(
        next(e for e in history.events if isinstance(e, Arrived) and e.number == late)
    )
    labels = [event.label for event in history.events if isinstance(event, Sent)]
    assert labels == [label.strip() for label in labels]
    refusal, lost = history.events[came + 1 : came + 3]
    assert isinstance(refusal, Sent)
    assert (refusal.source, refusal.target) == ("node 1", "p")
    assert (refusal.label, refusal.answers) == ("EndTxn PRODUCER_FENCED", late)
    assert isinstance(lost, Lost)
    assert (lost.number, lost.because) == (refusal.number, "nobody waits for it")


def test_choices_are_followed() -> None:
    """A message that takes longer by a choice makes another run, which ends the same way."""
    story = zombie().expect(visible={"t-0": ["b"]}).scenario()
    (slower,) = run(attrs.evolve(story, choices=(0,) * 12 + (15,) * 4))
    assert slower.problems == ()
    assert slower.digest != only(zombie()).digest
    assert slower.elapsed > only(zombie()).elapsed


def test_whoever_waits_for_a_slow_disk_waits_long() -> None:
    def committed(fault: str) -> RunResult:
        builder = (
            scenario("slow")
            .cluster(sync="commit")
            .producer("p", "init", "begin", "send t-0 a", "commit", transactional_id="app")
            .when("p starts")
            .do(fault, until="commit of p is ok")
        )
        report = only(builder.expect(visible={"t-0": ["a"]}))
        assert report.problems == ()
        return report

    assert committed("slow disk of node 1 100 times").elapsed > 10 * committed("slow p 1 times").elapsed


# --- what is not as expected ----------------------------------------------------------------------------

WRONG: list[tuple[str, Builder, str]] = [
    (
        "a fault that never strikes",
        zombie().when("old sends AddPartitionsToTxn").do("drop"),
        "fault struck 0 of 1 times: drop (old sends AddPartitionsToTxn)",
    ),
    (
        "a fault that strikes too rarely",
        lost_ack().when("p receives Produce reply", times=9).do("pause p", until="after 5 ms"),
        "fault struck 1 of 9 times: pause p (p receives Produce reply)",
    ),
    (
        "a fault that never ends",
        lost_ack().when("p sends Produce #2").do("hold", until="p dies"),
        "fault never ended: hold (p sends Produce #2) until p dies",
    ),
    (
        "a point that is never reached",
        zombie().expect(reaches=["commit of old is ok"]),
        "was never reached: commit of old is ok",
    ),
    (
        "other values",
        zombie().expect(visible={"t-0": ["a", "b"]}),
        "t-0 shows [b] to read_committed, not [a, b]",
    ),
    (
        "another log",
        zombie().expect(logs={"t-0": ["a", "b", "COMMIT"]}),
        "the log of t-0 holds [a, ABORT, b, COMMIT], not [a, b, COMMIT]",
    ),
    (
        "a rule that should be broken, and is kept",
        zombie().expect(violates=["G1a"]),
        "was expected to violate G1a, but G1a holds",
    ),
    (
        "a rule that is not put to the test",
        lost_ack().expect(holds=["torn-transaction"]),
        "never exercises torn-transaction",
    ),
    *(
        (
            f"{rule} of nobody",
            scenario("s").consumer("r", "t-0").expect(holds=[rule]),
            f"never exercises {rule}",
        )
        for rule in ("converges", "hanging-transaction", "exactly-once")
    ),
    (
        "exactly-once of copies when nothing is there to copy",
        lost_ack()
        .cluster(topics={"t": 1, "out": 1})
        .processor("c", "out-0", writes="t")
        .expect(holds=["exactly-once"]),
        "never exercises exactly-once",
    ),
    (
        "hanging transactions of who has none",
        lost_ack().expect(holds=["hanging-transaction"]),
        "never exercises hanging-transaction",
    ),
    ("a rule that is broken", lost_ack().cluster(broken=("dedup",)), "violates duplicate: "),
    (
        "a rule that is broken while its whole is allowed to be",
        lost_ack().cluster(broken=("dedup",)).expect(violates=["exactly-once"], holds=["duplicate"]),
        "violates duplicate, which should hold: ",
    ),
    (
        "a process that never comes to its end",
        scenario("stuck").producer("p", "wait until p pauses", "send t-0 a"),
        "violates converges: p never finishes",
    ),
]


@pytest.mark.parametrize(("builder", "problem"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_what_is_not_as_expected_is_told(builder: Builder, problem: str) -> None:
    report = only(builder)
    assert not report.passed
    assert any(found.startswith(problem) for found in report.problems), report.problems


def copied(*values: str) -> Builder:
    """Values are written to `a` and `b`, and processors copy them to `out`."""
    sends = [f"send {topic}-0 {value}" for topic, value in zip(("a", "b"), values, strict=False)]
    return scenario("copied").cluster(topics={"a": 1, "b": 1, "out": 1}).producer("p", *sends, "flush")


# Runs in which every copy is made exactly once, and what `out` then holds.
COPIES: list[tuple[str, Builder, list[str]]] = [
    (
        "two inputs have one output",
        copied("x", "y")
        .processor("c", "a-0", writes="out", group="one")
        .processor("d", "b-0", writes="out", group="two"),
        ["X", "Y"],
    ),
    (
        "two groups copy one input",
        copied("x")
        .processor("c", "a-0", writes="out", group="one")
        .processor("d", "a-0", writes="out", group="two"),
        ["X", "X"],
    ),
    (
        "one of two groups is late",
        copied("x")
        .processor("c", "a-0", writes="b", group="one")
        .processor("d", "a-0", writes="out", group="two", starts="on request")
        .when("at 300 ms")
        .do("start d"),
        ["X"],
    ),
    (
        "a producer writes to the output, too",
        copied("x").producer("q", "send out-0 Z", "flush").processor("c", "a-0", writes="out"),
        ["X", "Z"],
    ),
    (
        "a copy is copied again",
        copied("x")
        .processor("c", "a-0", writes="b", group="one")
        .processor("d", "b-0", writes="out", group="two"),
        ["X"],
    ),
    (
        "a value looks like a copy with its mark",
        copied("me@c.0.0").processor("c", "a-0", writes="out"),
        ["ME@C.0.0"],
    ),
    ("a name has the sign of a mark", copied("x").processor("c@d", "a-0", writes="out"), ["X"]),
]


@pytest.mark.parametrize(("builder", "values"), [row[1:] for row in COPIES], ids=[row[0] for row in COPIES])
def test_copies_that_are_made_exactly_once_are_not_accused(builder: Builder, values: list[str]) -> None:
    (case,) = cases(builder.expect(holds=["exactly-once", "converges"]).scenario())
    recorded = record_case(case)
    assert recorded.result.problems == ()
    out = TopicPartition("out", 0)
    assert sorted(value.decode() for value in recorded.run.visible()[out]) == values
    assert sorted(word for word in log_words(recorded.run, out) if word != "COMMIT") == values


def test_a_second_copy_in_the_same_group_is_found() -> None:
    builder = copied("x")
    for name in ("c", "d"):
        builder.processor(name, "a-0", writes="out", group="one")
    assert 'violates doubled-output: "X" is 2 times in out-0, not 1' in only(builder).problems


# What does nothing when its point comes, in the story of a lost acknowledgement.
IDLE: list[tuple[str, Builder]] = [
    ("a move to who leads", lost_ack().when("p starts").do("move t-0 to node 1")),
    ("a move of what nobody leads", lost_ack().when("at 0 ms").do("move __consumer_offsets-0 to node 1")),
    ("a partition of one", lost_ack().when("p ends").do("partition node 1 from leader of t-0")),
    ("appends to what is never written", lost_ack().when("p starts").do("fail appends of t-1")),
    ("syncs of who never syncs", lost_ack().when("p starts").do("fail syncs of t-0")),
    ("a disk that never syncs", lost_ack().when("p starts").do("slow disk of node 1 9 times")),
    ("a clock that does not jump", lost_ack().when("p starts").do("clock of node 1 +0 ms")),
    ("a second death", lost_ack().when("p ends").do("crash node 1").when("p ends").do("crash node 1")),
    ("the death of who is gone", lost_ack().when("p ends").do("kill p")),
    ("a second pause", lost_ack().when("p ends").do("pause node 1").when("p ends").do("pause node 1")),
    ("a second hold", held().when("p sends Produce").do("hold")),
    ("a second loss", lost_ack().when("node 1 sends Produce reply to p").do("drop")),
    (
        "a slowness of the same",
        lost_ack().when("p starts").do("slow p 3 times").when("p starts").do("slow p 9 times"),
    ),
]


@pytest.mark.parametrize("builder", [row[1] for row in IDLE], ids=[row[0] for row in IDLE])
def test_a_fault_that_does_nothing_never_struck(builder: Builder) -> None:
    faults = builder.scenario().faults
    fault = faults[-1]
    report = only(builder)
    told = f"fault struck 0 of 1 times: {fault.do} ({fault.when[0]})"
    assert told in report.problems, report.problems
    assert len(report.struck) == len(faults) - 1


@pytest.mark.parametrize(
    ("builder", "why"),
    [
        (
            lost_ack().when("p starts").do("slow disk of node 1 9 times"),
            'slow disk of node 1 9 times: its point was reached, but it needs a sync, and sync = "none"',
        ),
        (
            lost_ack().when("p receives EndTxn reply").do("drop"),
            "drop: its point was never reached: p receives EndTxn reply",
        ),
        (
            lost_ack().when("p sends Produce #9").do("drop"),
            "drop: its point was reached 2 of 9 times: p sends Produce #9",
        ),
        (
            lost_ack().when("p ends").do("kill p"),
            "kill p: its point was reached, but it needs a process that runs",
        ),
    ],
)
def test_a_fault_that_never_struck_says_why(builder: Builder, why: str) -> None:
    problems = only(builder).problems
    assert any(problem.startswith(why) for problem in problems), problems


def test_a_disk_that_fails_struck() -> None:
    report = only(
        scenario("s").producer("p", "send t-0 a", "flush").when("p starts").do("fail appends of t-0")
    )
    assert report.problems == ()
    assert report.struck == ("fail appends of t-0 (p starts)",)


FAILING = Mutation(
    "an append that nobody may make",
    breaks="Every append of records fails an assertion.",
    edits=(
        Edit(
            "broker.partitions.partition:apply",
            {"header.base_offset >= partition.log_end_offset": "header.base_offset < 0"},
        ),
    ),
)


def test_a_core_that_fails_is_a_problem_of_its_story() -> None:
    (case,) = cases(lost_ack().scenario())
    with planted(FAILING):
        report, recorded = run_case(case), record_case(case).result
    (problem,) = report.problems
    assert problem.startswith("a core failed: AssertionError in ")
    assert report.broken == ("a core failed",)
    assert recorded == report


STUMBLING = Mutation(
    "a judge that did not think of something",
    breaks="Whatever clients saw fails an assertion.",
    edits=(
        Edit(
            "simulator.scenarios.verdicts:judge", {"run.breaches += of_steps": "assert False, 'what is this'"}
        ),
    ),
)


def test_a_judge_that_fails_is_a_problem_of_its_story() -> None:
    (case,) = cases(lost_ack().scenario())
    with planted(STUMBLING):
        report, recorded = run_case(case), record_case(case).result
    (problem,) = report.problems
    assert problem.startswith("a judge failed: AssertionError in ")
    assert problem.endswith("what is this")
    assert report.broken == ("a judge failed",)
    assert recorded == report


def test_a_digest_knows_what_lies_in_the_logs() -> None:
    """Two stories with the same moments and other values."""
    one, other = (only(scenario("s").producer("p", f"send t-0 {value}")) for value in "ab")
    assert (one.events, one.elapsed) == (other.events, other.elapsed)
    assert one.digest != other.digest


def test_every_rule_that_a_story_can_name_is_named_once() -> None:
    assert len(set(RULE_NAMES)) == len(RULE_NAMES)


# --- losses of power ----------------------------------------------------------------------------------


def powerless(sync: str) -> Builder:
    """The power of the only node is cut after a commit."""
    return (
        scenario("s")
        .producer("p", "init", "begin", "send t-0 a", "commit", transactional_id="app")
        .cluster(sync=sync)
        .when("commit of p is ok")
        .do("cut power of node 1")
    )


def test_a_loss_of_power_without_syncs_says_what_to_set() -> None:
    """Brokers do not wait for the disk by default, as Kafka's: what that breaks is no bug of theirs."""
    (report,) = run(powerless("none").scenario())
    assert len(report.problems) > 1
    assert report.problems[-1] == (
        'the power of a node was cut, and sync = "none" (the default) may lose unsynced writes: '
        'in [cluster], sync = "commit" protects transactions, and sync = "all" every acknowledged record'
    )


def test_with_syncs_a_loss_of_power_breaks_nothing() -> None:
    (report,) = run(powerless("commit").scenario())
    assert report.problems == ()


def test_who_expects_a_loss_of_power_to_break_rules_is_told_nothing() -> None:
    (broken,) = run(powerless("none").scenario())
    (report,) = run(powerless("none").expect(violates=broken.broken).scenario())
    assert report.problems == ()


@pytest.mark.parametrize(
    ("sync", "broken", "warned"),
    [("commit", ["lost-write", "inconsistent-offsets", "nonmonotonic-poll"], 1), ("all", [], 0)],
)
def test_a_reader_of_records_that_the_power_took_reads_what_gets_their_offsets(
    sync: str, broken: list[str], warned: int
) -> None:
    """With `--sync commit` b is lost, and c takes its offset: a reader that goes on after b would miss c."""
    story = (
        scenario("s")
        .cluster(sync=sync)
        .producer("p", "send t-0 a", "flush", "pause 50 ms", "send t-0 b", "flush")
        .producer("q", "init", "begin", "send t-0 x", "commit", transactional_id="q")
        .producer("heir", "send t-0 c", "flush", starts="on request")
        .consumer("r", "t-0", isolation="read_uncommitted")
        .when("r reads b")
        .do("cut power of node 1", until="after 100 ms")
        .when("node 1 restarts")
        .do("start heir")
        .expect(violates=broken, reaches=["r reads c"])
    )
    report = only(story)
    assert report.problems == ()
    assert report.marks[WARNED] == warned


# --- files and Python -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_was_written_is_read_again(path: Path) -> None:
    story = scenario_of(path.read_text(), path.name)
    assert scenario_of(text_of(story)) == story


def test_the_builder_says_the_same_as_a_file() -> None:
    built = (
        scenario(
            "two fight",
            """A lesson with "quotes",
            and \\ more.""",
        )
        .cluster(
            nodes=2,
            topics={"in": 2, "out.1": 2},
            transaction_version=0,
            broken=("dedup",),
            without_fixes=("fences_once", "require_stable"),
        )
        .producer("p", "send in-0 a", "send in-1 b c", "pause 2 s", max_in_flight=1)
        .producer("q", "init", "wait until p ends #2", transactional_id="q", transaction_timeout_ms=50)
        .consumer("r", "in-0", group="g", starts="on request")
        .processor("c", "in-0", "in-1", writes="out.1")
        .when("at 5 ms", "before coordinator of q appends EMPTY")
        .do("clock of node 1 -3 s")
        .when("p sends Produce to leader of in-0", times=2)
        .do("hold", until="after 1 min")
        .when("c starts")
        .do("start r")
        .expect(holds=["exactly-once"], reaches=["c gets NOT_COORDINATOR from node 2"], logs={"in-0": ["a"]})
        .also_with(nodes=3, violates=["G1a"], visible={"in-0": []})
        .scenario()
    )
    assert scenario_of(text_of(built)) == built
    assert scenario_of(FILE) == built


FILE = '''
name = "two fight"
lesson = """A lesson with "quotes", and \\\\
more."""

[cluster]
nodes = 2
topics = { in = 2, "out.1" = 2 }
transaction_version = 0
broken = "dedup"
without_fixes = ["fences_once", "require_stable"]

[[producer]]
name = "p"
script = ["send in-0 a", "send in-1 b c", "pause 2000 ms"]
max_in_flight = 1

[[producer]]
name = "q"
transactional_id = "q"
transaction_timeout_ms = 50
script = ["init", "wait until p ends #2"]

[[consumer]]
name = "r"
reads = "in-0"
group = "g"
starts = "on request"

[[processor]]
name = "c"
reads = ["in-0", "in-1"]
writes = "out.1"

[[fault]]
when = ["at 5 ms", "before coordinator of q appends EMPTY"]
do = "clock of node 1 -3000 ms"

[[fault]]
when = "p sends Produce to leader of in-0"
times = 2
do = "hold"
until = "after 60 s"

[[fault]]
when = "c starts"
do = "start r"

[expect]
holds = ["exactly-once"]
reaches = ["c gets NOT_COORDINATOR from node 2"]
logs = { in-0 = ["a"] }
also_with = [{ nodes = 3, violates = "G1a", visible = { in-0 = [] } }]
'''
