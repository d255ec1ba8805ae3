"""The API reference: a page per group of public names, with their signatures and docstrings.

Rule: the pages are written from the code and never kept. `make reference` writes them and builds the site.
"""

# The clients' methods are made when the package is imported, from the scripts that both shells run. So the
# pages are written from the imported classes; a tool that only reads source files would not find the methods.

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import Enum
from inspect import Parameter, cleandoc, getmembers, isclass, isroutine, signature
from pathlib import Path
from typing import Any, Final

import fencepost

Page = tuple[str, str, tuple[str, ...]]
"""The title, an introduction, and the names."""

PAGES: Final[dict[str, Page]] = {
    "clients": (
        "Clients",
        "Blocking clients, and async ones with the same methods. Threads may share a blocking producer.",
        ("Producer", "Consumer", "Admin", "AsyncProducer", "AsyncConsumer", "AsyncAdmin"),
    ),
    "records": (
        "Records and offsets",
        "What clients take and return.",
        ("RecordMetadata", "Record", "ConsumedBatch", "TopicPartition", "OffsetAndMetadata",
         "ConsumerGroupMetadata", "RebalanceListener", "AbortSpec", "IsolationLevel", "TransactionState",
         "string_serializer", "string_deserializer", "json_serializer", "json_deserializer"),
    ),
    "errors": (
        "Errors",
        "Each class stands for one next step of the program, and its message ends with that step.",
        ("FencepostError", "ClientError", "WrongState", "ClientClosed", "BufferFull", "TransactionAborted",
         "ProducerFenced", "ProducerFailed", "CommitOutcomeUnknown", "CommitFailed", "RebalanceInProgress",
         "FencedInstanceId", "DeliveryTimeout", "DeliveryFailed", "RequestTimeout", "RequestFailed",
         "AuthorizationFailed", "AuthenticationFailed", "UnknownTopic", "OffsetOutOfRange", "CorruptRecords",
         "ProtocolViolation", "ErrorCode", "Remedy"),
    ),
}  # fmt: skip
LINE_MAX: Final = 80
REST: Final = ("testing", "Brokers, tests and simulations", "A broker, faults, checks and the simulator.")


def pages() -> dict[str, str]:
    """The text of every page of docs/reference, by file name."""
    shown = {name for _, _, names in PAGES.values() for name in names}
    rest = tuple(sorted(set(fencepost.__all__) - shown, key=str.lower))
    everything = {**PAGES, REST[0]: (REST[1], REST[2], rest)}
    texts = {
        f"{file}.md": "\n\n".join([f"# {title}", intro, *map(_entry, names)]) + "\n"
        for file, (title, intro, names) in everything.items()
    }
    links = [f"* [{title}]({file}.md): {', '.join(names)}" for file, (title, _, names) in everything.items()]
    first = "# API reference\n\nEvery public name; import each from `fencepost`.\n\n"
    return {"index.md": first + "\n".join(links) + "\n", **texts}


def _entry(name: str) -> str:
    found = getattr(fencepost, name)
    parts = [f"## {name}"]
    if not isclass(found):
        return "\n\n".join([*parts, _call(name, found), _text(found)])
    if not issubclass(found, (Enum, Exception)):
        parts.append(_call(name, found))
    parts.append(_text(found))
    constructor = vars(found).get("__init__") or found.__init__
    if not issubclass(found, (Enum, Exception)) and getattr(constructor, "__wrapped__", None) is not None:
        parts.append(_text(constructor))
    return "\n\n".join([*parts, *_members(found)])


def _members(kind: type[Any]) -> Iterator[str]:
    if issubclass(kind, (Enum, Exception)):
        return
    for name, member in getmembers(kind):
        if name.startswith("_") or not getattr(member, "__doc__", None):
            continue
        if isinstance(member, property):
            yield f"### {kind.__name__}.{name}\n\n{_text(member)}"
        elif isroutine(member) and getattr(member, "__module__", "").startswith("fencepost"):
            yield f"### {kind.__name__}.{name}\n\n{_call(name, member)}\n\n{_text(member)}"


def _call(name: str, function: Any) -> str:
    shape = signature(function)
    parameters = [_parameter(each) for each in shape.parameters.values() if each.name != "self"]
    listed = ", ".join(parameters)
    if len(listed) > LINE_MAX:
        listed = "\n    " + ",\n    ".join(parameters) + ",\n"
    result = str(shape.return_annotation).strip("'") if isroutine(function) else ""
    return f"```python\n{name}({listed}){f' -> {result}' if result else ''}\n```"


def _parameter(parameter: Parameter) -> str:
    annotation = str(parameter.annotation).strip("'")
    star = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    if parameter.default is Parameter.empty:
        return f"{star}{parameter.name}: {annotation}"
    default = getattr(parameter.default, "__name__", None) or repr(parameter.default)
    return f"{parameter.name}: {annotation} = {default}"


def _text(documented: Any) -> str:
    return cleandoc(documented.__doc__ or "")


def main(directory: Path) -> None:
    """Writes the pages into a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (directory / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
