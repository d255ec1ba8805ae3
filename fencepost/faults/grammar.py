"""The engine of every phrase: one table gives the parser, the writer, the suggestions and the help.

Rule: `read(write(value)) == value`, since reading and writing walk the same template.
"""

# Theory of operation
#
# A *phrase* is text with typed *blanks*, some of it optional, and one sentence of help:
#
#     {who:WHO} sends {what:REQUEST} [to {whom:WHO}] [#{number:N}]
#
#     node 1 sends EndTxn reply to p #2      what people write: `Grammar.read`, `Grammar.write`
#     WHO sends REQUEST reply [to WHO] [#N]  what errors and documentation show: `Phrase.shown`
#
# A blank `{field:BLANK}` names a field of the value that the phrase makes, and the *blank* that says what may
# stand there: a pattern, perhaps a list of words, and how text becomes a value and back. `[...]` is left out
# when each field in it has its default. A *grammar* is an enum whose members are phrases, and the attrs class
# whose first field is the member and whose other fields are the blanks:
#
#     Enum of phrases --+--> patterns    --> read(text)   -> value
#                       +--> templates   --> write(value) -> text
#                       +--> vocabulary  --> "did you mean ...?"
#                       +--> shown, help --> errors, scenarios/README.md
#
# A second spelling of a phrase (one for the parser, one for the writer) would break the rule one day: a fault
# that the fuzzer found and wrote to a file would not be the one that the file reproduces.
#
# Phrases are tried in the order of the enum, and the first whose fixed words match decides. Only then the
# blanks are read: "p sends EndTxm" is a phrase with an unknown REQUEST, so the error lists requests.

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, Generic, TypeVar

import attrs

from fencepost.protocol.suggestions import nearest, suggestion

NUMBER_MAX: Final = 1_000_000_000  # of anything: milliseconds and bytes have 32 bits in the protocol
SHOWN_MAX: Final = 20  # possibilities, in the traceback of an error
LIKENESS_OF_LISTED: Final = 0.58  # of names, which are long: NOT_A_LEADER means NOT_LEADER_OR_FOLLOWER
_BLANK: Final = re.compile(r"\{(?P<field>\w+):(?P<blank>[^}]+)\}")
# A space belongs to the optional part beside it, so that a phrase without that part has no space too many.
_PARTS: Final = re.compile(r"(?P<first>^\[[^]]+\] )|(?P<later> \[[^]]+\])|(?P<fixed>[^\[]+?(?= \[|$))")
_TIME: Final = re.compile(r"(?P<sign>[+-]?)(?P<count>\d+) ?(?P<unit>ms|s|min)")
UNITS_MS: Final = {"ms": 1, "s": 1_000, "min": 60_000}

ValueT = TypeVar("ValueT")


class BadPhrase(ValueError):
    """A text that is not a phrase of its grammar; `possible` lists what may stand in its place."""

    def __init__(self, what: str, *, possible: Iterable[str] = ()) -> None:
        super().__init__(what)
        self.possible = tuple(possible)
        if 0 < len(self.possible) <= SHOWN_MAX:
            self.add_note(f"(possible: {'; '.join(self.possible)})")


@attrs.frozen
class Blank:
    """What may stand in a blank: text of this `pattern`, one of the `words` if there are any."""

    help: str
    pattern: str = attrs.field(kw_only=True, default=r"[^ #]+")
    words: tuple[str, ...] = attrs.field(kw_only=True, default=())
    read: Callable[[str], Any] = attrs.field(kw_only=True, default=str)
    write: Callable[[Any], str] = attrs.field(kw_only=True, default=str)

    def accepts(self, text: str) -> bool:
        """Whether only this blank can be meant by the text. Never true of a blank that takes any name."""
        if self.words:
            return text in self.words
        if self.read is str or re.fullmatch(self.pattern, text) is None:
            return False
        try:
            self.read(text)
        except BadPhrase:
            return False
        return True


@attrs.frozen
class Phrase:
    """Fixed words with blanks, and one sentence of help."""

    template: str
    help: str

    @property
    def shown(self) -> str:
        """The phrase as people see it: "crash NODE"."""
        return _BLANK.sub(lambda found: found["blank"], self.template)

    @property
    def blanks(self) -> dict[str, str]:
        """The name of the blank for each field that the phrase fills."""
        return {found["field"]: found["blank"] for found in _BLANK.finditer(self.template)}

    def is_begun_by(self, text: str) -> bool:
        """Whether the text has the words with which the phrase begins, before its first blank."""
        words, blank, _ = self.template.partition("{")
        return bool(blank and words) and "[" not in words and text.startswith(words)

    def parts(self) -> list[tuple[str, bool]]:
        """The template in pieces, each with its space, and whether the piece is optional."""
        return [
            (found[0] if found["fixed"] else found[0].replace("[", "").replace("]", ""), not found["fixed"])
            for found in _PARTS.finditer(self.template)
        ]

    def pattern(self, blanks: Mapping[str, Blank]) -> re.Pattern[str]:
        """The regular expression that matches the phrase, with a group for each field."""
        pieces = ((_pattern(part, blanks), is_optional) for part, is_optional in self.parts())
        return re.compile("".join(f"(?:{piece})?" if is_optional else piece for piece, is_optional in pieces))


def _pattern(part: str, blanks: Mapping[str, Blank]) -> str:
    """The regular expression of a piece of a template."""
    at, piece = 0, ""
    for found in _BLANK.finditer(part):
        piece += re.escape(part[at : found.start()])
        piece += f"(?P<{found['field']}>{blanks[found['blank']].pattern})"
        at = found.end()
    return piece + re.escape(part[at:])


@attrs.define(eq=False)
class Grammar(Generic[ValueT]):
    """All phrases of one sort. `makes` is an attrs class with a default per field that may be omitted."""

    name: str  # "a protocol point": completes the sentence "... is not"
    phrases: type[Enum]
    makes: type[ValueT]
    blanks: Mapping[str, Blank]
    shown: tuple[Enum, ...] = ()  # the phrases that errors list; by default all
    patterns: dict[Enum, re.Pattern[str]] = attrs.field(init=False)
    vocabulary: tuple[str, ...] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.shown = self.shown or tuple(self.phrases)
        self.patterns = {kind: kind.value.pattern(self.blanks) for kind in self.phrases}
        used = {blank for kind in self.phrases for blank in kind.value.blanks.values()}
        fixed = {word for kind in self.phrases for word in re.findall(r"[a-z_]+", kind.value.shown)}
        # Names have fixed words, too: without "coordinator" the nearest word would be FindCoordinator.
        named = {word for blank in used for word in re.findall("[a-z]{4,}", self.blanks[blank].pattern)}
        self.vocabulary = tuple(sorted(fixed.union(named, *(self.blanks[blank].words for blank in used))))

    @property
    def kind_field(self) -> str:
        """The field of a value that holds its phrase."""
        return attrs.fields(self.makes)[0].name  # type: ignore[misc] - any attrs class

    def read(self, text: str) -> ValueT:
        """The value that a text names. BadPhrase, with what is possible, when it names none."""
        text = text.strip()
        for kind, pattern in self.patterns.items():
            # fullmatch: a phrase with a word too many is an error, not a shorter phrase.
            if found := pattern.fullmatch(text):
                filled = {field: word for field, word in found.groupdict().items() if word is not None}
                try:
                    return self._make(kind, filled, text)
                except BadPhrase:
                    if better := self._ended(kind.value, text):
                        because = f"{quoted(text)} is not {self.name}; did you mean {quoted(better)}?"
                        raise BadPhrase(because, possible=[kind.value.shown]) from None
                    raise
        if begun := [kind.value for kind in self.shown if kind.value.shown.startswith(f"{text} ")]:
            raise BadPhrase(
                f"{quoted(text)} is not {self.name}; did you mean {self._completed(begun)}",
                possible=[phrase.shown for phrase in begun],
            )
        if lacking := self._lacking_their_word(text):
            better = " or ".join(
                f"{quoted(phrase.shown.split(' ')[0] + ' ' + text)} ({phrase.help})" for phrase in lacking
            )
            raise BadPhrase(
                f"{quoted(text)} is not {self.name}; did you mean {better}?",
                possible=[phrase.shown for phrase in lacking],
            )
        suggested = self._suggestion(text)
        meant = [kind.value for kind in self.shown if not suggested and kind.value.is_begun_by(text)]
        if meant:
            suggested = f"; did you mean {self._completed(meant)}"
        raise BadPhrase(
            f"{quoted(text)} is not {self.name}{suggested}",
            possible=[phrase.shown for phrase in meant or [kind.value for kind in self.shown]],
        )

    def _make(self, kind: Enum, filled: Mapping[str, str], text: str) -> ValueT:
        values: dict[str, Any] = {self.kind_field: kind}
        for field, name in kind.value.blanks.items():
            if field in filled:
                values[field] = self._fill(name, filled[field], text)
        return self.makes(**values)

    def _fill(self, name: str, word: str, text: str) -> Any:
        blank = self.blanks[name]
        # The pattern takes any word and the list is compared here, so that the error can suggest a near one.
        if blank.words and word not in blank.words:
            meant = suggestion(word, blank.words, likeness_min=LIKENESS_OF_LISTED)
            because = f"{quoted(text)}: {quoted(word)} is not {a(name)}{meant}"
            raise BadPhrase(because, possible=blank.words)
        return blank.read(word)

    def write(self, value: ValueT) -> str:
        """The text that names a value; `read` gives the same value back."""
        fields = attrs.fields_dict(type(value))  # type: ignore[arg-type] - any attrs class
        kind: Enum = getattr(value, next(iter(fields)))

        def fill(found: re.Match[str]) -> str:
            return self.blanks[found["blank"]].write(getattr(value, found["field"]))

        def is_usual(part: str) -> bool:
            named = [found["field"] for found in _BLANK.finditer(part)]
            return all(getattr(value, name) == fields[name].default for name in named)

        written = [
            _BLANK.sub(fill, part)
            for part, is_optional in kind.value.parts()
            if not (is_optional and is_usual(part))
        ]
        return "".join(written)

    def _ended(self, phrase: Phrase, text: str) -> str:
        """The text with the word that ends an optional part, if it lacks only that, as "every 3" does."""
        for part, is_optional in phrase.parts():
            begun, _, last = part.rpartition(" ")
            if is_optional and last.isalpha() and re.search(f"{_pattern(begun, self.blanks)}$", text):
                try:
                    self.read(f"{text} {last}")
                except BadPhrase:
                    continue
                return f"{text} {last}"
        return ""

    def _completed(self, begun: Sequence[Phrase]) -> str:
        """The phrases that begin with a text, and what the blanks of the only one mean."""
        better = " or ".join(quoted(phrase.shown) for phrase in begun) + "?"
        if len(begun) > 1:
            return better
        names = dict.fromkeys(begun[0].blanks.values())
        return " ".join([better, "; ".join(f"{name} is {self.blanks[name].help}" for name in names)])

    def _lacking_their_word(self, text: str) -> list[Phrase]:
        """The phrases of one word and one blank in which only this blank fits: "500 ms" lacks "after"."""
        lacking: list[Phrase] = []
        for kind in self.shown:
            phrase: Phrase = kind.value
            blank = _BLANK.fullmatch(phrase.template.partition(" ")[2])
            if blank is not None and self.blanks[blank["blank"]].accepts(text):
                lacking.append(phrase)
        return lacking

    def _suggestion(self, text: str) -> str:
        """The nearest text word by word, but only if it is a phrase: a suggestion must be possible."""
        words = text.split(" ")
        better = " ".join(
            word if word in self.vocabulary else next(iter(nearest(word, self.vocabulary)), word)
            for word in words
        )
        if better == text:
            return ""
        try:
            found = self.read(better)
        except BadPhrase:
            return ""
        if getattr(found, self.kind_field) not in self.shown:
            return ""
        return f"; did you mean {quoted(better)}?"


# --- words ------------------------------------------------------------------------------------------------


def quoted(text: str) -> str:
    """The text as it stands in a TOML file."""
    return f'"{text}"'


def a(noun: str) -> str:
    """The noun with its article."""
    return f"an {noun}" if noun[0] in "AEIOUaeiou" else f"a {noun}"


def whole_number(text: str, *, least: int, most: int) -> int:
    """A number without a fraction, within these limits."""
    # Compared by length before int(), which refuses a text of 4,300 digits by another error.
    digits = text.removeprefix("-")
    if not digits.isdecimal() or len(digits) > len(str(most)) or not least <= int(text) <= most:
        raise BadPhrase(f"{quoted(text)} is not a whole number from {least} to {most}")
    return int(text)


def count(text: str) -> int:
    """A number of at least 1."""
    return whole_number(text, least=1, most=NUMBER_MAX)


def duration(text: str) -> int:
    """A time such as "300 ms", "3 s" or "2 min", in milliseconds."""
    return _milliseconds(text, least=0)


def jump(text: str) -> int:
    """A time with its sign, such as "+3 s" or "-20 ms", in milliseconds."""
    return _milliseconds(text, least=-NUMBER_MAX)


def _milliseconds(text: str, *, least: int) -> int:
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise BadPhrase(f"{quoted(text)} is not a time", possible=["300 ms", "3 s", "2 min"])
    # Compared by length before int(): a text of a million digits must not be converted.
    digits = match["count"]
    count = int(digits) * UNITS_MS[match["unit"]] if len(digits) <= len(str(NUMBER_MAX)) else NUMBER_MAX + 1
    signed = -count if match["sign"] == "-" else count
    if not least <= signed <= NUMBER_MAX:
        raise BadPhrase(f"{quoted(text)} is not a time from {least} to {NUMBER_MAX} ms")
    return signed


def time_text(count_ms: int) -> str:
    """The same time in the largest unit that is exact."""
    for unit in ("min", "s"):
        if count_ms and count_ms % UNITS_MS[unit] == 0:
            return f"{count_ms // UNITS_MS[unit]} {unit}"
    return f"{count_ms} ms"
