"""The searches that a page began: each in a process of its own, few at a time, with what they found so far.

Rule: a search ends at its own end, when the page stops it, or when its time is over; and always with the lab.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

import attrs
import trio

from fencepost.lab.worker import PROGRESS
from fencepost.lab.workers import Unplayable, WorkLimits, worker

RUNNING_MAX: Final = 2  # at the same time
KEPT_MAX: Final = 20  # with those that have ended

RUNNING: Final = "running"
DONE: Final = "done"
STOPPED: Final = "stopped"
FAILED: Final = "failed"


@attrs.define(eq=False)
class SearchJob:
    """One search: its `state`, its last `progress`, and the `error` that ended it."""

    kind: str
    state: str = RUNNING
    progress: dict[str, Any] = attrs.Factory(dict[str, Any])
    error: str | None = None
    scope: trio.CancelScope = attrs.Factory(trio.CancelScope)


@attrs.define(eq=False)
class SearchJobs:
    """All searches of a lab, by number."""

    limits: WorkLimits
    nursery: trio.Nursery
    searches: OrderedDict[int, SearchJob] = attrs.Factory(OrderedDict[int, SearchJob])
    _last: int = 0

    def begin(self, described: Mapping[str, Any]) -> int:
        """Begin a search and return its number. Unplayable if too many are running."""
        running = [each for each in self.searches.values() if each.state == RUNNING]
        if len(running) >= RUNNING_MAX:
            raise Unplayable(
                f"{len(running)} searches are running already: stop one, or wait until one ends", status=429
            )
        self._last += 1
        search = SearchJob(str(described.get("kind")))
        self.searches[self._last] = search
        for number in [number for number, each in self.searches.items() if each.state != RUNNING]:
            if len(self.searches) > KEPT_MAX:
                del self.searches[number]
        self.nursery.start_soon(self._run, search, described)
        return self._last

    def stop(self, number: int) -> None:
        """Stop a search; what it found is kept."""
        search = self._search(number)
        if search.state == RUNNING:
            search.state = STOPPED
            search.scope.cancel()

    def state(self, number: int) -> dict[str, Any]:
        """What the page shows of a search."""
        search = self._search(number)
        progress: dict[str, Any] = {"words": "starting", "at": 0, "of": None, "found": [], **search.progress}
        return {
            "id": number,
            "kind": search.kind,
            "state": search.state,
            "progress": {key: progress[key] for key in ("words", "at", "of")},
            "found": progress["found"],
            "error": search.error,
        }

    def _search(self, number: int) -> SearchJob:
        if number not in self.searches:
            raise Unplayable(f"there is no search {number}", status=404)
        return self.searches[number]

    async def _run(self, search: SearchJob, described: Mapping[str, Any]) -> None:
        try:
            with search.scope:
                with trio.move_on_after(self.limits.search_seconds_max) as time_limit:
                    await self._follow(search, described)
                if time_limit.cancelled_caught:
                    search.state = STOPPED
                    search.error = f"stopped after {self.limits.search_seconds_max:g} s, its limit of time"
        except Unplayable as problem:
            search.state, search.error = FAILED, str(problem)

    async def _follow(self, search: SearchJob, described: Mapping[str, Any]) -> None:
        async with worker(self.limits) as started:
            await started.is_ready()
            await started.ask({"do": "search", "search": dict(described)})
            while PROGRESS in (said := await started.next_answer()):
                search.progress = said[PROGRESS]
            search.state = DONE
