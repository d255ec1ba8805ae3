"""What `fencepost run NAME --step` shows of a walk: the steps, logs and states beside them, and the reason.

Rule: a screen always fits the terminal. The lines that do not fit are counted, and Tab moves them up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from textwrap import wrap
from typing import Any, Final

import attrs
from rich.cells import cell_len
from rich.text import Text

from fencepost.cli.step_walk import ABORTED, COMMITTED, OPEN, PLAIN, Walk
from fencepost.lab.document import BatchEntry, StepEntry
from fencepost.protocol.terms import TRANSACTION_STATE_TOPIC, escaped

WIDTH_MIN, HEIGHT_MIN = 60, 16
WIDE: Final = 150  # terminal columns: from here on, the states are in two columns
GAP: Final = " │ "
REASON_LINES: Final = 5  # at the bottom, when there is room
NS_PER_MS: Final = 1_000_000

Lines = list[Text]

# Styles only repeat what the signs say: a terminal may have no colours.
TITLE, QUIET, HERE = "bold", "dim", "reverse"
RESULTS: Final = {COMMITTED: ("✓", "green"), ABORTED: ("✗", "red"), OPEN: ("?", "yellow"), PLAIN: ("", "")}
SIGNS: Final = {
    "sent": "●",
    "arrived": "▶",
    "lost": "✗",
    "appended": "■",
    "bounded": "|",
    "truncated": "/",
    "coordinated": "◆",
    "called": "»",
    "struck": "!",
}
FLAG_STYLES: Final = {
    "violation": "bold red",
    "fault": "yellow",
    "refusal": "magenta",
    "lost": "yellow",
    "late": "yellow",
    "marker": "cyan",
}
IN_ASCII: Final = str.maketrans(dict(zip("●▶✗■◆»│─…✓→←·⚡×", "o>x#*:|-~+><.!x", strict=True)))

KEYS: Final = (
    (("Right", "Space", "l", "n"), "one step forward"),
    (("Left", "Backspace", "h", "p"), "one step back"),
    (("Page Down", "Page Up"), "ten steps forward, back"),
    (("Home", "End"), "the first step, the last one"),
    (("f", "F"), "the next fault, the previous one"),
    (("r", "R"), "the next refusal, the previous one"),
    (("m", "M"), "the next marker, the previous one"),
    (("v", "V"), "the next broken rule, the previous one"),
    (("a number", "Enter"), "go to the step with this number"),
    (("t",), "show one transactional id, then the next, then all"),
    (("Tab",), "move the next right-hand panel to the top"),
    (("[", "]"), "the previous run, the next one, if there are several"),
    (("?",), "show or hide this help"),
    (("q", "Esc", "Ctrl-C"), "quit"),
)
"""The keys of a walk and what they do, for its help and for the documentation."""
SHORT_KEYS: Final = (
    ("← →", "step"),
    ("f", "fault"),
    ("r", "refusal"),
    ("m", "marker"),
    ("v", "violation"),
    ("t", "filter"),
    ("?", "help"),
    ("q", "quit"),
)


@attrs.frozen(kw_only=True)
class Shown:
    """What the screen says besides the walk: `run` of `runs`, the panel at the top, a number being typed."""

    run: int = 1
    runs: int = 1
    first_panel: int = 0
    typed: str = ""
    has_help: bool = False
    news: str = ""  # what the last key could not do


def screen(walk: Walk, shown: Shown, width: int, height: int) -> Lines:
    """The screen: exactly `height` lines of at most `width` cells."""
    if width < WIDTH_MIN or height < HEIGHT_MIN:
        what = f"The terminal has {width} x {height} cells; --step needs {WIDTH_MIN} x {HEIGHT_MIN}."
        return _fitted(map(Text, wrap(what, width)), width, height)
    head, foot = _head(walk, shown, width), _foot(walk, shown, width)
    room = height - len(head) - len(foot)
    if shown.has_help:
        return [*head, *_fitted(_help(), width, height - len(head) - 1), foot[-1]]
    return [*head, *_fitted(_body(walk, shown, width, room), width, room), *foot]


def in_ascii(text: str) -> str:
    """The text with ASCII signs; any other character becomes a question mark."""
    return text.translate(IN_ASCII).encode("ascii", "replace").decode()


# --- head and foot ------------------------------------------------------------------------------------------


def _head(walk: Walk, shown: Shown, width: int) -> Lines:
    document, here = walk.document, walk.here
    of = f"run {shown.run} of {shown.runs}  " if shown.runs > 1 else ""
    time = "" if here is None else f"  {here['at'] / NS_PER_MS:,.1f} ms"
    place = f"{of}step {walk.step} of {max(len(walk.steps) - 1, 0)}{time}"
    title = Text(f" {escaped(document['title'])}")
    title.truncate(width - cell_len(place) - 3, overflow="ellipsis")
    title.append(" " * (width - title.cell_len - cell_len(place) - 1) + place + " ")
    title.stylize(HERE)
    facts = [*_settings(document["settings"]), *_troubled(walk)]
    if walk.transaction:
        facts.append(f"only {escaped(walk.transaction)}")
    second = Text(f" {' · '.join(facts)}", style=QUIET)
    if document["broken"]:
        rules = ", ".join(rule["rule"] for rule in document["broken"])
        second.append(f"  ✗ {escaped(rules)}", style="bold red")
    return [title, _cut(second, width)]


def _settings(settings: dict[str, Any]) -> Iterator[str]:
    if "transaction_version" in settings:
        yield f"transaction_version {settings['transaction_version']}"
    if not settings.get("partition_verification", True):
        yield "no partition verification"
    for key, word in (("broken", "broken"), ("without_fixes", "without")):
        if settings.get(key):
            yield f"{word} {', '.join(settings[key])}"


def _troubled(walk: Walk) -> Iterator[str]:
    for name, state in walk.of_kind("participant"):
        if state in ("down", "paused"):
            yield f"{escaped(name)} is {state}"


def _foot(walk: Walk, shown: Shown, width: int) -> Lines:
    """A rule, what happened, why, and the keys."""
    lines: Lines = [Text("─" * width, style=QUIET)]
    reason = _reason(walk, width)
    lines += _fitted(reason, width, REASON_LINES)
    if shown.news:
        lines.append(_cut(Text(f" {shown.news}", style="yellow"), width))
    elif shown.typed:
        lines.append(Text(f" go to step {shown.typed}  (Enter)", style=TITLE))
    else:
        lines.append(_short_keys(width))
    return lines


def _short_keys(width: int) -> Text:
    keys = [Text().append(key, style=TITLE).append(f" {what}") for key, what in SHORT_KEYS]
    return _cut(Text(" ").append_text(Text("  ").join(keys)), width)


def _reason(walk: Walk, width: int) -> Lines:
    step = walk.here
    if step is None:
        return [Text(" Nothing happens in this run.")]
    lines = _wrapped(escaped(step["text"]), width, style=TITLE)
    for rule in walk.document["broken"]:
        if rule["step"] == walk.step:
            lines += _wrapped(f"✗ {escaped(rule['rule'])}: {escaped(rule['text'])}", width, style="bold red")
    why = step.get("why")
    if why is not None:
        lines += _wrapped(escaped(why["text"]), width)
        named = [why.get("table", ""), why.get("rule", ""), why.get("error", "")]
        source = why.get("source", "")
        named.append(f"Kafka: {source}" if source else "")
        lines += _wrapped(" · ".join(escaped(each) for each in named if each), width, style=QUIET)
    return lines


def _help() -> Lines:
    wide = max(cell_len(", ".join(keys)) for keys, _ in KEYS) + 3
    lines: Lines = [Text(" Keys", style=TITLE)]
    for keys, what in KEYS:
        line = Text().append(f" {', '.join(keys)}", style=TITLE)
        lines.append(_padded(line, wide).append(what))
    legend = "● sent  ▶ arrived  ✗ lost  ■ appended  ◆ state of a transaction  » call  ! fault"
    return [*lines, Text(), Text(f" {legend}"), Text(" Values: ✓ committed  ✗ aborted  ? undecided")]


# --- the body -----------------------------------------------------------------------------------------------


def _body(walk: Walk, shown: Shown, width: int, height: int) -> Lines:
    columns = 2 if width >= WIDE else 1
    beside = min(int(width * (0.6 if columns == 2 else 0.42)), 70 * columns)
    each = (beside - len(GAP) * (columns - 1)) // columns
    left = width - (each + len(GAP)) * columns
    turn = shown.first_panel % len(PANELS)
    panels = [panel(walk, each) for panel in (*PANELS[turn:], *PANELS[:turn])]
    lists = [
        [_padded(line, left) for line in _steps(walk, left, height)],
        *(_stacked(panels[at::columns], each, height) for at in range(columns)),
    ]
    return [_beside(parts) for parts in zip(*lists, strict=True)]


def _beside(parts: Iterable[Text]) -> Text:
    line = Text()
    for part in parts:
        line.append(GAP if line else "", style=QUIET).append_text(part)
    return line


def _steps(walk: Walk, width: int, height: int) -> Lines:
    """The steps around this one, which is marked."""
    before = [number for number in range(walk.step - 1, -1, -1) if walk.is_shown(number)][: height - 1]
    after = [number for number in range(walk.step + 1, len(walk.steps)) if walk.is_shown(number)]
    above = max((height - 1) // 2, height - 1 - len(after))
    numbers = [*reversed(before[:above]), *([walk.step] if walk.steps else []), *after]
    digits, lines, last = len(str(max(len(walk.steps) - 1, 0))), Lines(), ""
    for number in numbers[:height]:
        step = walk.steps[number]
        time = f"{step['at'] / NS_PER_MS:,.1f}"
        lines.append(_row(walk, number, step, "" if time == last else time, digits, width))
        last = time
    return _fitted(lines, width, height)


def _row(walk: Walk, number: int, step: StepEntry, time: str, digits: int, width: int) -> Text:
    flags = walk.flags(number)
    style = next((style for flag, style in FLAG_STYLES.items() if flag in flags), "")
    line = Text().append(f"{number:>{digits}} {time:>8} ", style=QUIET)
    line.append(f"{escaped(step['lane']) or 'network'} {SIGNS[step['kind']]} {escaped(step['note'])}", style)
    if "violation" in flags:
        line.append(" ✗", style="bold red")
    line = _cut(line, width)
    if number == walk.step:
        line.append(" " * (width - line.cell_len))
        line.stylize(HERE)
    return line


def _stacked(panels: Iterable[Lines], width: int, height: int) -> Lines:
    """Panels one below the other; the last line counts what has no room."""
    lines = [line for panel in panels for line in panel if panel]
    if len(lines) > height:
        hidden = len(lines) - height + 1
        lines = [*lines[: height - 1], Text(f"… {hidden} more lines: Tab", style=QUIET)]
    return [_padded(line, width) for line in _fitted(lines, width, height)]


# --- panels -------------------------------------------------------------------------------------------------


def _logs(walk: Walk, width: int) -> Lines:
    lines: Lines = [Text("Logs", style=TITLE)]
    for name, log in _written(walk):
        line = Text(escaped(name))
        if log.get("leader") is not None:
            line.append(f" at {escaped(str(log['leader']))}, epoch {log.get('leader_epoch')}")
        lines.append(line.append(f"  LSO {log['lso']}  HW {log['hw']}", style=QUIET))
        lines.append(_strip(walk, walk.batches(name), log, width))
    return lines if len(lines) > 1 else [*lines, Text("no partition yet", style=QUIET)]


def _written(walk: Walk) -> Iterator[tuple[str, Any]]:
    """The logs in which this run writes. The transaction log is left out: the coordinators' panel shows what
    it says.
    """
    written = {batch["partition"] for batch in walk.document["batches"]}
    for name, log in walk.of_kind("log"):
        if name in written and not name.startswith(f"{TRANSACTION_STATE_TOPIC}-"):
            yield name, log


def _strip(walk: Walk, batches: list[BatchEntry], log: dict[str, Any], width: int) -> Text:
    """The records of a log, and where readers stop; only the newest records, if there is no room for all."""
    lso, high_watermark = log["lso"], log["hw"]
    pointers = [(lso, "LSO"), (high_watermark, "HW")] if lso < high_watermark else [(lso, "LSO=HW")]
    parts: Lines = []
    for batch in batches:
        while pointers and pointers[0][0] <= batch["first"]:
            parts.append(Text(f"│{pointers.pop(0)[1]}", style=TITLE))
        parts.append(_record(walk, batch))
    parts += [Text(f"│{name}", style=TITLE) for _, name in pointers]
    room = width - 2
    kept = len(parts)
    while kept and (room := room - parts[kept - 1].cell_len - 1) >= 1:
        kept -= 1
    return Text(" ").join([Text("  …" if kept else " "), *parts[kept:]])


def _record(walk: Walk, batch: BatchEntry) -> Text:
    if batch["kind"] != "data":
        return Text("C" if batch["kind"] == "commit" else "A", style="bold reverse")
    sign, style = RESULTS[walk.result(batch)]
    return Text(f"{escaped(batch['text']) or '()'}{sign}", style=style)


def _coordinator(walk: Walk, _width: int) -> Lines:
    lines: Lines = [Text("Coordinator", style=TITLE)]
    for name, txn in walk.of_kind("txn"):
        line = Text(f"{escaped(name)} at {escaped(str(txn['node']))}: ")
        lines.append(line.append(txn["state"], style=TITLE))
        lines.append(Text(f"  producer {txn['producer']}, epoch {txn['epoch']}", style=QUIET))
        if txn.get("partitions"):
            lines.append(Text(f"  partitions {', '.join(txn['partitions'])}"))
        if txn.get("pending"):
            lines.append(Text(f"  markers missing: {', '.join(txn['pending'])}", style="yellow"))
        arrows = [arrow for arrow in walk.document["machine"]["arrows"] if arrow["from"] == txn["state"]]
        lines += [Text(f"  {arrow['input']} → {arrow['to']}", style=QUIET) for arrow in arrows]
    return lines if len(lines) > 1 else [*lines, Text("no transaction yet", style=QUIET)]


def _leader(walk: Walk, _width: int) -> Lines:
    lines: Lines = [Text("Partition leader: producers", style=TITLE)]
    for key, producer in walk.of_kind("producer"):
        partition, _, number = key.rpartition("/")
        line = Text(f"{escaped(partition)}  {number}/{producer['epoch']}")
        line.append(f", last sequence {producer['last_sequence']}", style=QUIET)
        if producer.get("open_since") is not None:
            line.append(f", open since {producer['open_since']}", style="yellow")
        if producer.get("guard"):
            line.append(f", guard {producer['guard']}", style="yellow")
        lines.append(line)
    return lines if len(lines) > 1 else [*lines, Text("no producer yet", style=QUIET)]


def _readers(walk: Walk, _width: int) -> Lines:
    lines: Lines = [Text("What readers see", style=TITLE)]
    for name in (name for name, _ in _written(walk) if not name.startswith("__")):
        for level, committed in (("read_committed", True), ("read_uncommitted", False)):
            end, values = walk.readable(name, committed=committed)
            said = " ".join(escaped(value) for value in values) or "nothing"
            line = Text().append(f"{escaped(name)} {level} up to {end}: ", style=QUIET)
            lines.append(line.append(said))
    for key, position in walk.of_kind("reader"):
        name, _, partition = key.rpartition("/")
        lines.append(Text(f"{escaped(name)} is at {escaped(partition)} offset {position}"))
    return lines


PANELS: Final = (_logs, _coordinator, _leader, _readers)


# --- lines --------------------------------------------------------------------------------------------------


def _cut(line: Text, width: int) -> Text:
    line.truncate(width, overflow="ellipsis")
    return line


def _padded(line: Text, width: int) -> Text:
    line.append(" " * max(0, width - line.cell_len))
    return line


def _wrapped(text: str, width: int, *, style: str = "") -> Lines:
    return [Text(f" {line}", style=style) for line in wrap(text, width - 2)]


def _fitted(lines: Iterable[Text], width: int, height: int) -> Lines:
    """Exactly `height` lines, none wider than `width`."""
    found = [_cut(line, width) for line in lines][:height]
    return [*found, *(Text() for _ in range(height - len(found)))]
