"""One sentence for each kind of fact in a log.

Rule: offsets stand first and line up, so that the eye runs down the log as the broker did.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from fencepost.cli.printing import counted, moment

AnyFact = dict[str, Any]  # facts are JSON: what a key holds is known by its kind


def in_words(fact: AnyFact) -> str:
    """The sentence for one fact."""
    return WORDS[fact["kind"]](fact)


def span(first: int, last: int) -> str:
    """`7` or `7-12`."""
    return str(first) if first == last else f"{first}-{last}"


def producer(fact: AnyFact) -> str:
    """Who wrote it."""
    return f"producer {fact['producer_id']} epoch {fact['producer_epoch']}"


def batch(fact: AnyFact) -> str:
    parts = [counted(fact["records"], "record")]
    if "producer_id" in fact:
        parts.append(producer(fact))
    if "first_sequence" in fact:
        parts.append(f"sequence {span(fact['first_sequence'], fact['last_sequence'])}")
    if fact["transactional"]:
        parts.append("in a transaction")
    if fact["compression"] != "none":
        parts.append(fact["compression"])
    parts += [f"{fact['size']:,} bytes", moment(fact["timestamp"])]
    if not fact["intact"]:
        parts.append("DAMAGED: the checksum does not match")
    return f"{span(fact['offset'], fact['last_offset']):>15}  " + ", ".join(parts)


def marker(fact: AnyFact) -> str:
    return (
        f"{fact['offset']:>15}  {fact['result']} marker: {producer(fact)}, "
        f"coordinator epoch {fact['coordinator_epoch']}, {moment(fact['timestamp'])}"
    )


def record(fact: AnyFact) -> str:
    key, value = (json.dumps(fact[name], ensure_ascii=False) for name in ("key", "value"))
    headers = f"  headers {json.dumps(fact['headers'], ensure_ascii=False)}" if fact["headers"] else ""
    return f"{fact['offset']:>19}: {key} -> {value}{headers}"


def transaction(fact: AnyFact) -> str:
    name = f"{'':15}  {fact['transactional_id']!r} "
    if fact["state"] == "Dead":
        return name + "is forgotten"
    begun = " (BEGIN)" if fact["state"] == "Ongoing" else ""
    where = ": " + ", ".join(fact["partitions"]) if fact["partitions"] else ""
    return f"{name}{fact['state']}{begun}, {producer(fact)}{where}"


def offset(fact: AnyFact) -> str:
    how = " when its transaction commits" if fact["transactional"] else ""
    what = "forgets" if fact["committed"] is None else f"is at {fact['committed']} of"
    return f"{'':15}  group {fact['group']!r} {what} {fact['of']}{how}"


def group(fact: AnyFact) -> str:
    name = f"{'':15}  group {fact['group']!r} "
    if fact["generation"] is None:
        return name + "is forgotten"
    members = [f"{each} leads" if each == fact["leader"] else each for each in fact["members"]]
    return f"{name}generation {fact['generation']}: " + (", ".join(members) or "nobody")


def cluster(fact: AnyFact) -> str:
    hidden = {"kind", "log", "file", "offset", "what"}
    said = ", ".join(f"{name} {value}" for name, value in fact.items() if name not in hidden)
    return f"{'':15}  {fact['what']}: {said}"


def index(fact: AnyFact) -> str:
    return f"{fact['offset']:>15}  lies in the batch at byte {fact['position']:,}"


def timeindex(fact: AnyFact) -> str:
    return f"{fact['offset']:>15}  is as new as anything before it: {moment(fact['timestamp'])}"


def aborted(fact: AnyFact) -> str:
    first, last = fact["first_offset"], fact["last_offset"]
    return (
        f"{span(first, last):>15}  aborted: producer {fact['producer_id']}, its marker is {last}; "
        f"nothing open then began before {fact['last_stable_offset']}"
    )


def snapshot(fact: AnyFact) -> str:
    first_offset = fact["first_offset"]
    state = "no transaction open" if first_offset < 0 else f"transaction open since {first_offset}"
    return (
        f"{fact['at']:>15}  {producer(fact)}: last sequence {fact['last_sequence']} at "
        f"{fact['last_offset']}, "
        f"coordinator epoch {fact['coordinator_epoch']}, {state}"
    )


def manifest(fact: AnyFact) -> str:
    return f"{'':15}  {json.dumps(fact['content'])}"


def damage(fact: AnyFact) -> str:
    where = f"{fact['size']:,} bytes at byte {fact['position']:,}: " if "position" in fact else ""
    return f"{'':15}  DAMAGED or unfinished: {where}{fact['because']}"


WORDS: dict[str, Callable[[AnyFact], str]] = {
    "batch": batch,
    "marker": marker,
    "record": record,
    "transaction": transaction,
    "offset": offset,
    "group": group,
    "cluster": cluster,
    "index": index,
    "timeindex": timeindex,
    "aborted": aborted,
    "producer": snapshot,
    "manifest": manifest,
    "damage": damage,
}
