"""What is wrong with the order in which clients read and write, each beside what is right."""

from __future__ import annotations

from fencepost.protocol.terms import IsolationLevel
from fencepost.simulator.judges.operations import PositionSet
from tests.simulator.client_stories import (
    ABC,
    FAIL,
    INFO,
    READS_ABC,
    A,
    B,
    case,
    peek,
    plain,
    poll,
    transaction,
    write,
)

ORDER = [
    case(
        "a record is left out between polls",
        "poll-skip",
        ABC,
        READS_ABC,
        plain("c", poll((0, "a"))),
        plain("c", poll((2, "c"))),
    ),
    case(
        "... by a transaction that failed after all",
        "poll-skip",
        ABC,
        READS_ABC,
        plain("c", poll((0, "a"))),
        transaction("c", poll((2, "c")), outcome=FAIL),
    ),
    case(
        "... after a poll that returned nothing",
        "poll-skip",
        ABC,
        READS_ABC,
        plain("c", poll((0, "a"))),
        plain("c", poll()),
        plain("c", poll((2, "c"))),
    ),
    case(
        "... by a reader of everything, of an aborted record",
        "poll-skip",
        plain("p", write("a", 0), write("c", 2)),
        transaction("q", write("b", 1), outcome=FAIL),
        peek("u", poll((0, "a"), (1, "b"), (2, "c"))),
        peek("v", poll((0, "a"))),
        peek("v", poll((2, "c"))),
    ),
    case(
        "its position was set",
        "",
        ABC,
        READS_ABC,
        plain("c", poll((0, "a"))),
        plain("c", PositionSet(A)),
        plain("c", poll((2, "c"))),
    ),
    case(
        "other processes go on elsewhere",
        "",
        ABC,
        READS_ABC,
        plain("c", poll((0, "a"))),
        plain("d", poll((2, "c"))),
    ),
    case(
        "markers and aborted records are holes",
        "",
        transaction("p", write("a", 0)),
        transaction("p", write("b", 2), outcome=FAIL),
        transaction("p", write("c", 4)),
        peek("u", poll((0, "a"), (2, "b"), (4, "c"))),
        plain("c", poll((0, "a"))),
        plain("c", poll((4, "c"))),
        plain("d", poll((0, "a"), (4, "c"))),
    ),
    case(
        "read again in the next operation",
        "nonmonotonic-poll",
        ABC,
        plain("c", poll((0, "a"), (1, "b"))),
        plain("c", poll((1, "b"), (2, "c"))),
    ),
    case(
        "... after its position was set",
        "",
        ABC,
        plain("c", poll((0, "a"), (1, "b"))),
        plain("c", PositionSet(A), poll((1, "b"), (2, "c"))),
    ),
    case(
        "... after that of another partition was set",
        "nonmonotonic-poll",
        ABC,
        plain("c", poll((0, "a"))),
        plain("c", PositionSet(B), poll((0, "a"))),
    ),
    case(
        "a record is left out within an operation",
        "int-poll-skip",
        ABC,
        READS_ABC,
        plain("c", poll((0, "a"), (2, "c"))),
    ),
    case(
        "... between its polls", "int-poll-skip", ABC, READS_ABC, plain("c", poll((0, "a")), poll((2, "c")))
    ),
    case(
        "... where its position was set",
        "",
        ABC,
        READS_ABC,
        plain("c", poll((0, "a")), PositionSet(A), poll((2, "c"))),
    ),
    case(
        "back within an operation",
        "int-nonmonotonic-poll",
        ABC,
        READS_ABC,
        plain("c", poll((0, "a"), (1, "b"), (1, "b"), (2, "c"))),
    ),
    case(
        "... between its polls",
        "int-nonmonotonic-poll",
        ABC,
        READS_ABC,
        plain("c", poll((0, "a"), (1, "b")), poll((0, "a"))),
    ),
    case(
        "a later write stands before an earlier one",
        "nonmonotonic-send",
        plain("p", write("a", 1)),
        plain("p", write("b", 0)),
    ),
    case("... but its process is another", "", plain("p", write("a", 1)), plain("q", write("b", 0))),
    case("... but the partition is another", "", plain("p", write("a", 1)), plain("p", write("b", 0, to=B))),
    case(
        "... but the first one was aborted, and its leader lost it",
        "",
        transaction("p", write("a", 1), outcome=FAIL),
        plain("p", write("b", 0)),
    ),
    case(
        "a later write of the operation stands first",
        "int-nonmonotonic-send",
        transaction("p", write("a", 1), write("b", 0)),
    ),
    case(
        "records of others between the writes of a transaction",
        "",
        transaction("p", write("a", 0), write("b", 2)),
        plain("q", write("c", 1)),
    ),
]

CYCLES = [
    case(
        "each of two transactions has read the other",
        "G1c",
        transaction("p", write("a", 0), poll((0, "b"), of=B)),
        transaction("q", poll((0, "a")), write("b", 0, to=B)),
    ),
    case(
        "... and each of three the next one, where one is of unknown outcome",
        "G1c",
        transaction("p", write("a", 0), poll((1, "b"))),
        transaction("q", write("b", 1), poll((2, "c"))),
        transaction("r", write("c", 2), poll((0, "a")), outcome=INFO),
    ),
    case(
        "one after the other",
        "",
        transaction("p", write("a", 0)),
        transaction("q", poll((0, "a")), write("b", 0, to=B)),
        transaction("p", poll((0, "b"), of=B)),
    ),
    case(
        "plain writes are seen at once",
        "",
        plain("p", write("a", 0), poll((0, "b"), of=B)),
        plain("q", poll((0, "a")), write("b", 0, to=B)),
    ),
    case(
        "readers of everything may read each other",
        "",
        *(
            each._replace(isolation_level=IsolationLevel.READ_UNCOMMITTED)
            for each in (
                transaction("p", write("a", 0), poll((0, "b"), of=B)),
                transaction("q", poll((0, "a")), write("b", 0, to=B)),
            )
        ),
    ),
    case(
        "records of two transactions in turn, since Kafka does not isolate writes",
        "",
        transaction("p", write("a", 0), write("c", 2)),
        transaction("q", write("b", 1), write("d", 3)),
    ),
    case(
        "... of which one was aborted",
        "",
        transaction("p", write("a", 0), write("c", 2)),
        transaction("q", write("b", 1), write("d", 3), outcome=FAIL),
        peek("u", poll((0, "a"), (1, "b"), (2, "c"), (3, "d"))),
    ),
    case(
        "... in two partitions",
        "",
        transaction("p", write("a", 0), write("c", 1, to=B)),
        transaction("q", write("b", 1), write("d", 0, to=B)),
    ),
    case(
        "... in the same order",
        "",
        transaction("p", write("a", 0), write("c", 0, to=B)),
        transaction("q", write("b", 1), write("d", 1, to=B)),
    ),
]
