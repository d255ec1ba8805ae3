"""The API reference: a page per group of public names, with their signatures and docstrings.

Rule: the pages are written from the code and never kept. `make reference` writes them and builds the site.
"""

# The clients' methods are made when the package is imported, from the scripts that both shells run. So the
# pages are written from the imported classes; a tool that only reads source files would not find the methods.

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from inspect import Parameter, isclass, iscoroutinefunction, isroutine, signature, unwrap
from pathlib import Path
from typing import Any, Final

import fencepost
from tools.docs import public

Page = tuple[str, str, tuple[str, ...]]
"""The title, an introduction, and the names."""

PAGES: Final[dict[str, Page]] = {
    "producer": (
        "Producers",
        "A blocking producer and an async one with the same methods. Threads may share a blocking producer.",
        ("Producer", "AsyncProducer", "SendFuture", "SendFutures", "AsyncSendFuture", "AsyncSendFutures",
         "StoredRecords", "RecordMetadata"),
    ),
    "consumer": (
        "Consumers",
        "A blocking consumer and an async one with the same methods, and what they take and return.",
        ("Consumer", "AsyncConsumer", "ConsumedBatch", "Record", "RebalanceListener", "ConsumerGroupMetadata",
         "OffsetAndMetadata"),
    ),
    "admin": (
        "Administration",
        "Topics, offsets, transactions, producers, groups and faults of a cluster.",
        ("Admin", "AsyncAdmin", "AbortSpec", "TopicDescription", "DescribedConfig", "ConfigSynonym",
         "ConfigSource", "ConfigType", "TransactionListing", "TransactionDescription", "TransactionState",
         "ProducerDescription", "GroupListing", "GroupDescription", "MemberDescription", "GroupState",
         "GroupType", "DescribedFault", "BrokerStatusReply", "TopicStatus", "PartitionSize", "StateCount",
         "RequestStatus", "DiskProblem", "FollowReply", "FollowedStep"),
    ),
    "values": (
        "Values of all clients",
        "What producers, consumers and admins have in common.",
        ("TopicPartition", "IsolationLevel", "SecuritySettings", "string_serializer", "string_deserializer",
         "json_serializer", "json_deserializer"),
    ),
    "errors": (
        "Errors",
        "Each class stands for one next step of the program, and its message ends with that step.",
        ("FencepostError", "ClientError", "WrongState", "ClientClosed", "BufferFull", "RecordTooLarge",
         "TransactionAborted", "ProducerFenced", "ProducerFailed", "CommitOutcomeUnknown", "CommitFailed",
         "RebalanceInProgress", "FencedInstanceId", "DeliveryTimeout", "DeliveryFailed", "RequestTimeout",
         "RequestFailed", "AuthorizationFailed", "AuthenticationFailed", "UnknownTopic", "OffsetOutOfRange",
         "CorruptRecords", "ProtocolViolation", "ErrorCode", "Remedy"),
    ),
    "testing": (
        "Brokers and tests",
        "A broker to run, faults and a proxy for it, checks, and sweeps.",
        ("Broker", "BrokerProcess", "BrokerFailed", "ObserverFailed", "Faults", "FaultPoint", "FaultHandle",
         "FaultNeverStruck", "NoSuchFault", "Proxy", "NetworkFault", "ProxyNotRunning", "Recording",
         "StepFeed",
         "assert_exactly_once", "assert_committed", "assert_no_open_transactions", "sweep", "sweep_points",
         "SweepReport", "SweepFault", "SweepRun", "RunVerdict", "SweepFailed"),
    ),
    "simulation": (
        "Simulations",
        "Random worlds, scenarios, and every state of a small cluster: what `fencepost.simulation` has.",
        ("simulate", "fuzz", "run_scenario", "explore", "scenario", "read_scenario", "bundled_scenarios",
         "to_html", "save_html",
         "RunResult", "FuzzResult", "SeedFinding", "ScenarioResult", "Explored", "SimulationFailed",
         "Violation", "KnownAnomaly", "Builder", "When", "Scenario", "BadScenario", "History"),
    ),
}  # fmt: skip
LINE_MAX: Final = 80
TYPES: Final = ("types", "Types in signatures", "Names that stand for types and are not classes.")

_ITEM: Final = re.compile(r"(?:^|(?<=[.)] ))(?=`\w+`(?:, `\w+`)*: )")
_ERRORS: Final = {
    *(name for name in vars(builtins) if name.endswith("Error")),
    *(name for name, entry in public.entries().items() if isclass(entry) and issubclass(entry, Exception)),
}
_RAISES: Final = re.compile(rf"(?<=\. )(?=(?:Raises )?(?:{'|'.join(sorted(_ERRORS))})\b)")


def pages() -> dict[str, str]:
    """The text of every page of docs/reference, by file name."""
    entries = public.entries()
    texts = {
        f"{file}.md": "\n\n".join([f"# {title}", intro, *(_entry(name, entries[name]) for name in names)])
        for file, (title, intro, names) in PAGES.items()
    }
    links = [f"* [{title}]({file}.md): {', '.join(names)}" for file, (title, _, names) in PAGES.items()]
    file, title, intro = TYPES
    links.append(f"* [{title}]({file}.md)")
    first = "# API reference\n\nImport names from `fencepost`; an entry says so if its home is elsewhere.\n\n"
    texts[f"{file}.md"] = "\n\n".join([f"# {title}", intro, "\n".join(_items(public.TYPES.items()))])
    return {name: text + "\n" for name, text in {"index.md": first + "\n".join(links), **texts}.items()}


def _entry(name: str, entry: Any) -> str:
    parts = [f"## {name}"]
    if name not in fencepost.__all__:
        parts.append(f"*In `{public.MORE.get(name, 'fencepost.simulation')}`.*")
    if not isclass(entry):
        return "\n\n".join([*parts, *_function(name, entry)])
    text = public.class_text(entry)
    shared: dict[str, str] = {}
    if issubclass(entry, Exception):
        parts.append(f"```python\nclass {name}({', '.join(base.__name__ for base in entry.__bases__)})\n```")
    elif public.is_constructed(entry):
        parts.append(_calls(name, entry))
        shared = public.shared_words(entry, text)
    parts.append(_listed(text, shared))
    found = dict(_attributes(entry, text, shared))
    parts += ["Attributes:", "\n".join(_items(found.items()))] if found else []
    if advice := getattr(entry, "advice", ""):
        parts.append(f"Next step: {advice}.")
    return "\n\n".join([*parts, *_members(entry)])


def _attributes(kind: type[Any], text: str, shown: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The attributes that the text of a class does not explain."""
    for field, below in public.attributes(kind).items():
        if issubclass(kind, Enum):
            below = below or str(getattr(kind[field], "meaning", kind[field].value))
        if below or (f"`{field}`" not in text and field not in shown):
            yield field, below or public.WORDS[field]


def _members(kind: type[Any]) -> Iterator[str]:
    for name, member in public.members(kind):
        heading = f"### {kind.__name__}.{name}"
        if isinstance(member, property):
            assert member.fget is not None, "it can be read"
            result = signature(member.fget).return_annotation
            shown = [f"```python\n{name}: {_type(result)}\n```", public.text_of(member)]
        else:
            shown = _function(name, member)
        yield "\n\n".join([heading, *shown])


def _function(name: str, function: Callable[..., Any]) -> list[str]:
    text = public.text_of(function)
    return [_calls(name, function), _listed(text, public.shared_words(function, text))]


def _items(explained: Iterable[tuple[str, str]]) -> Iterator[str]:
    for name, text in explained:
        yield f"* `{name}`: {' '.join(text.split())}"


def _listed(text: str, shared: Mapping[str, str]) -> str:
    """A docstring with an item for each parameter that it explains in the form "`name`: ...", after an item
    for each shared word.
    """
    shown: list[str] = []
    common = [*_items(shared.items())]
    for paragraph in text.split("\n\n"):
        first, *items = _ITEM.split(paragraph.replace("\n", " "))
        if not items:
            shown.append(paragraph)
            continue
        *others, last = items
        last, *rest = _RAISES.split(last, maxsplit=1)
        listed = "\n".join([*common, *(f"* {item.strip()}" for item in (*others, last))])
        shown += [part for part in (first.strip(), listed, *rest) if part]
        common = []
    return "\n\n".join([*shown, *(["\n".join(common)] if common else [])])


# --- signatures ---------------------------------------------------------------------------------------------


def _calls(name: str, function: Any) -> str:
    result = ""
    if isroutine(function):
        result = f" -> {_type(signature(function).return_annotation)}"
        if iscoroutinefunction(function) or iscoroutinefunction(unwrap(function)):
            name = f"await {name}"
    lines = [
        _call(name, shape, result if len(public.shapes(function)) == 1 else "")
        for shape in public.shapes(function)
    ]
    return "\n".join(["```python", *lines, "```"])


def _call(name: str, shape: list[Parameter], result: str) -> str:
    parameters: list[str] = []
    has_star = False
    for each in shape:
        has_star = has_star or each.kind is Parameter.VAR_POSITIONAL
        if each.kind is Parameter.KEYWORD_ONLY and not has_star:
            parameters.append("*")
            has_star = True
        parameters.append(_parameter(each))
    listed = ", ".join(parameters)
    if len(listed) > LINE_MAX:
        listed = "\n    " + ",\n    ".join(parameters) + ",\n"
    return f"{name}({listed}){result}"


def _parameter(parameter: Parameter) -> str:
    star = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    shown = f"{star}{parameter.name}: {_type(parameter.annotation)}"
    if parameter.default is Parameter.empty:
        return shown
    default = getattr(parameter.default, "__name__", None) or repr(parameter.default)
    if isinstance(parameter.default, Enum):
        default = str(parameter.default)
    return f"{shown} = {default}"


def _type(annotation: Any) -> str:
    """An annotation as a reader needs it: without the marks that are for machines."""
    text = annotation.__name__ if isclass(annotation) else str(annotation)
    text = re.sub(r"ForwardRef\('(.*)'\)", r"\1", text).strip("'")
    text = re.sub(r"Annotated\[(\w+), [^\]]*\]", r"\1", text)
    text = re.sub(r"^(Async)?Generator\[(\w+)\]$", r"Abstract\1ContextManager[\2]", text)
    return re.sub(r"\b(m|os|typing)\.", "", text)


def main(directory: Path) -> None:
    """Writes the pages into a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (directory / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
