"""The process that plays for the lab: one request at a time, each a line of JSON, answered by lines of JSON.

Rule: it reads no file, opens no socket, and ends with its parent, however that ended. If it needs more memory
than it may have, it says so in its last answer: what the run left half done is discarded with the process.
"""

# Theory of operation
#
#                         ◀──{"ready": null}────── stdout  all modules are loaded: time counts from here on
#     server (workers.py) ──{"do": "play", ...}──▶ stdin   a thread reads; at its end, the process is over
#                         ◀──{"progress": ...}──── stdout  only searches, as often as they like
#                         ◀──{"done": ...}──────── or {"refused": ...}, {"exhausted": ...}, {"failed": ...}
#
# Scenarios are data: nothing in a request is ever evaluated, imported or opened. The limits are for what a
# scenario may legally ask for, which is more work than a person waits for. Time is limited by the parent,
# which kills this process; memory by the kernel (RLIMIT_AS), which makes Python raise MemoryError here.
#
# Ctrl-C at a terminal reaches every process there. This one ignores it, because its parent ends it.

from __future__ import annotations

import contextlib
import gc
import json
import os
import queue
import resource
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Final, TextIO

from fencepost.lab.play import arguments_of, play, play_both, save
from fencepost.lab.searches import search
from fencepost.lab.vocabulary import vocabulary
from fencepost.protocol.errors import FencepostError
from fencepost.simulator.scenarios.files import scenario_of
from fencepost.simulator.scenarios.model import Scenario, variants

Answer = dict[str, Any]
READY: Final = "ready"
DONE: Final = "done"
REFUSED: Final = "refused"
EXHAUSTED: Final = "exhausted"
FAILED: Final = "failed"
PROGRESS: Final = "progress"


# --- what can be asked --------------------------------------------------------------------------------------


def _check(request: Mapping[str, Any]) -> Answer:
    arguments = arguments_of({"text": request.get("text"), "scenario": request.get("scenario")})
    return described(scenario_of(arguments.text, arguments.scenario or "scenario"))


def described(scenario: Scenario) -> Answer:
    """What the list of scenarios says of one."""
    return {
        "title": scenario.name,
        "lesson": " ".join(scenario.lesson.split()),
        "variants": [{"number": number, "title": case.title} for number, case in variants(scenario)],
    }


def _list(request: Mapping[str, Any]) -> list[Answer]:
    """The bundled scenarios, whose texts the server has read."""
    texts: Mapping[str, str] = request["texts"]
    return [
        {"name": name, "text": text, **described(scenario_of(text, name))} for name, text in texts.items()
    ]


_ASKED: Final[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = {
    "list": _list,
    "check": _check,
    "vocabulary": lambda _: vocabulary(),
    "play": lambda request: play(arguments_of(request["run"])),
    "compare": lambda request: play_both(arguments_of(request["left"]), arguments_of(request["right"])),
    "save": lambda request: save(arguments_of(request["run"])),
}


def answer(request: Mapping[str, Any], tell: Callable[[Answer], None]) -> Answer:
    """The answer to one request; `tell` sends the progress of a search before it."""
    try:
        if request["do"] == "search":
            search(request["search"], lambda progress: tell({PROGRESS: progress}))
            return {DONE: None}
        return {DONE: _ASKED[request["do"]](request)}
    except FencepostError as problem:
        return {REFUSED: str(problem)}


# --- the process --------------------------------------------------------------------------------------------


def limit_memory(bytes_max: int) -> None:
    """Let the kernel refuse more memory than this, where it can: macOS knows no such limit."""
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (bytes_max, bytes_max))


def listen(requests: queue.SimpleQueue[str]) -> None:
    """Read stdin to its end, which comes when the parent closes it or dies. Then the process ends, even in
    the middle of a run.
    """
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)


def serve(requests: queue.SimpleQueue[str], answer_to: TextIO) -> None:
    """Answer one request after the other; return when the memory was exhausted."""

    def tell(told: Answer) -> None:
        answer_to.write(json.dumps(told) + "\n")
        answer_to.flush()

    tell({READY: None})
    while True:
        line = requests.get()
        try:
            tell(answer(json.loads(line), tell))
        except MemoryError:
            tell({EXHAUSTED: None})
            return
        except BrokenPipeError:
            raise
        except Exception as problem:  # noqa: BLE001 - our bug: it is printed, and the next request may be fine
            traceback.print_exc()
            tell({FAILED: f"{type(problem).__name__}: {problem}"})
        gc.collect()  # a finished run is full of reference cycles


def main(bytes_max: int) -> None:
    """The main function of the process: `python -m fencepost.lab.worker BYTES`."""
    limit_memory(bytes_max)
    # What a core prints must not be taken for an answer.
    answer_to = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    requests = queue.SimpleQueue[str]()
    threading.Thread(target=listen, args=(requests,), daemon=True).start()
    with contextlib.suppress(BrokenPipeError):
        serve(requests, answer_to)
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
