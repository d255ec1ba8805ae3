"""What is wrong with single records: in two places, read too early or never; each beside what is right."""

from __future__ import annotations

from fencepost.protocol.terms import IsolationLevel
from fencepost.simulator.judging.operations import Placed
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

RECORDS = [
    case(
        "two values at one offset",
        "inconsistent-offsets",
        plain("p", write("a"), write("b"), outcome=INFO),
        plain("c", poll((0, "a"))),
        plain("d", poll((0, "b"))),
    ),
    case(
        "one offset acknowledged for two",
        "inconsistent-offsets",
        plain("p", write("a", 0)),
        plain("q", write("b", 0)),
    ),
    case(
        "one offset each",
        "",
        plain("p", write("a"), write("b"), outcome=INFO),
        plain("c", poll((0, "a"))),
        plain("d", Placed(A), poll((1, "b"))),
    ),
    case(
        "an abort takes its offsets back with it",
        "",
        transaction("p", write("a", 0), outcome=FAIL),
        plain("q", write("b", 0)),
        plain("d", poll((0, "b"))),
    ),
    case(
        "one write at two offsets",
        "duplicate",
        plain("p", write("a", 0)),
        plain("c", poll((0, "a"), (1, "a"))),
    ),
    case(
        "a value stands where it was read: readers have not gone past b",
        "duplicate",
        plain("p", write("b", 2), write("a", 3)),
        plain("c", poll((0, "a"))),
    ),
    case("nobody wrote it", "phantom", plain("c", poll((0, "a")))),
    case("written elsewhere", "phantom", plain("p", write("a", 0, to=B)), plain("c", poll((0, "a")))),
    case(
        "an aborted value is read",
        "G1a",
        transaction("p", write("a", 0), outcome=FAIL),
        plain("c", poll((0, "a"))),
    ),
    case(
        "... which is no reproach to those who leave it out",
        "G1a",
        plain("q", write("b", 0), write("c", 2)),
        transaction("p", write("a", 1), outcome=FAIL),
        plain("c", poll((0, "b"), (1, "a"), (2, "c"))),
        plain("d", poll((0, "b"), (2, "c"))),
    ),
    case(
        "a plain write that failed is read, at whatever isolation level",
        "G1a",
        plain("p", write("a"), outcome=FAIL),
        peek("c", poll((0, "a"))),
    ),
    case(
        "an aborted value is there for readers of everything",
        "",
        transaction("p", write("a", 0), outcome=FAIL),
        peek("c", poll((0, "a"))),
        plain("d", poll()),
    ),
    case(
        "a transaction reads its own write",
        "precommitted-read",
        transaction("p", write("a", 0), poll((0, "a"))),
    ),
    case(
        "... at read_uncommitted, as it may",
        "",
        transaction("p", write("a", 0), poll((0, "a")))._replace(
            isolation_level=IsolationLevel.READ_UNCOMMITTED
        ),
    ),
    case("a plain write is seen at once", "", plain("p", write("a", 0), poll((0, "a")))),
    case(
        "the next transaction reads it",
        "",
        transaction("p", write("a", 0)),
        transaction("p", write("b", 2), poll((0, "a"))),
    ),
    case(
        "read before the commit was asked for",
        "undecided-read",
        plain("c", poll((0, "a"))),
        transaction("p", write("a", 0), asked=1),
    ),
    case(
        "read after that, before its process heard of it",
        "",
        plain("c", poll((0, "a"))),
        transaction("p", write("a", 0), asked=0),
    ),
    case(
        "read by a reader of everything",
        "",
        peek("c", poll((0, "a"))),
        transaction("p", write("a", 0), asked=1),
    ),
]

MISSING = [
    case("readers go past a write", "lost-write", ABC, plain("c", poll((0, "a"), (2, "c")))),
    case(
        "... one after the other", "lost-write", ABC, plain("c", poll((0, "a"))), plain("d", poll((2, "c")))
    ),
    case(
        "... which only readers of everything have read",
        "lost-write",
        ABC,
        peek("u", poll((0, "a"), (1, "b"), (2, "c"))),
        plain("c", poll((0, "a"), (2, "c"))),
    ),
    case(
        "... and which was not acknowledged, but plainly stood there",
        "lost-write",
        plain("p", write("a"), write("b"), outcome=INFO),
        peek("u", poll((0, "a"), (1, "b"))),
        plain("c", poll((1, "b"))),
    ),
    case(
        "both writes of a committed transaction are gone",
        "lost-write lost-write",
        transaction("p", write("a", 0), write("b", 1)),
        plain("q", write("c", 3)),
        plain("c", poll((3, "c"))),
    ),
    case("readers have not come so far", "", ABC, plain("c", poll((0, "a"), (1, "b")))),
    case("others have left nothing unread", "", ABC, READS_ABC, plain("c", Placed(A), poll((2, "c")))),
    case(
        "what came before was left out on purpose",
        "",
        ABC,
        plain("c", Placed(A, leaves_unread=True), poll((2, "c"))),
    ),
    case(
        "... but not what came after",
        "lost-write",
        plain("p", write("a", 0), write("b", 1), write("c", 2), write("d", 3)),
        plain("c", Placed(A, leaves_unread=True), poll((1, "b"), (3, "d"))),
    ),
    case(
        "aborted and unknown writes are not missed",
        "",
        transaction("p", write("a", 0), outcome=FAIL),
        transaction("p", write("b", 2), outcome=INFO),
        plain("q", write("c", 4), write("d"), outcome=INFO),
        plain("c", poll((4, "c"))),
        finally_read=(A, B),
    ),
    case(
        "half of a transaction of unknown outcome is read",
        "torn-transaction",
        transaction("p", write("a", 0), write("b", 0, to=B), outcome=INFO),
        plain("q", write("c", 2, to=B)),
        plain("c", poll((0, "a")), poll((2, "c"), of=B)),
    ),
    case(
        "... and half of one that was acknowledged",
        "torn-transaction lost-write",
        transaction("p", write("a", 0), write("b", 0, to=B)),
        plain("q", write("c", 2, to=B)),
        plain("c", poll((0, "a")), poll((2, "c"), of=B)),
    ),
    case(
        "... and the other half's offset is unknown, but all of it was read to the end",
        "torn-transaction",
        transaction("p", write("a", 0), write("b", to=B), outcome=INFO),
        plain("c", poll((0, "a"))),
        finally_read=(B,),
    ),
    case(
        "the other half may still come",
        "",
        transaction("p", write("a", 0), write("b", 1, to=B), outcome=INFO),
        plain("q", write("c", 0, to=B)),
        plain("c", poll((0, "a")), poll((0, "c"), of=B)),
    ),
    case(
        "a reader of everything tells nothing of the outcome",
        "",
        transaction("p", write("a", 0), write("b", 0, to=B), outcome=INFO),
        plain("q", write("c", 2, to=B)),
        peek("u", poll((0, "a"))),
        plain("c", poll((2, "c"), of=B)),
    ),
    case(
        "any of several plain writes may have happened",
        "",
        plain("p", write("a"), write("b"), outcome=INFO),
        plain("c", poll((0, "b"))),
        finally_read=(A,),
    ),
    case("never seen", "unseen", ABC, plain("c", poll((0, "a"), (1, "b"))), finally_read=(A,)),
    case(
        "... by readers of committed records",
        "unseen",
        plain("p", write("a", 0)),
        peek("u", poll((0, "a"))),
        plain("c", poll()),
        finally_read=(A,),
    ),
    case("seen at last", "", ABC, peek("u", poll((0, "a"), (1, "b"), (2, "c"))), finally_read=(A,)),
    case("nobody has read to the end", "", ABC, plain("c", poll((0, "a"), (1, "b"))), finally_read=(B,)),
]
