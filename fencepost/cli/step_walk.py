"""Where a walk through a run stands: the step, the state after it, and what the keys do.

Rule: a walk only reads the run document. Every state follows from the changes of the steps up to this one,
so a step back shows what the step forward showed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import attrs

from fencepost.lab.document import BatchEntry, RunDocument, StepEntry

PAGE: Final = 10  # steps

ABORTED, COMMITTED, OPEN, PLAIN, MARKER = "aborted", "committed", "open", "plain", "marker"


@attrs.define(eq=False)
class Walk:
    """A walk through one run. `step` is the number of the step that was taken last."""

    document: RunDocument
    step: int = 0
    transaction: str = ""  # only steps of this transactional id are shown; "": all
    _state: dict[str, Any] = attrs.Factory(dict[str, Any])
    _state_at: int = -1

    @property
    def steps(self) -> Sequence[StepEntry]:
        """Every step of the run."""
        return self.document["steps"]

    @property
    def here(self) -> StepEntry | None:
        """The step that was taken last; None in a run in which nothing happens."""
        return self.steps[self.step] if self.steps else None

    def is_shown(self, number: int) -> bool:
        """Whether the filter lets this step through."""
        return not self.transaction or self.transaction in self.steps[number].get("transactions", ())

    # --- moves ----------------------------------------------------------------------------------------------

    def move(self, by: int) -> bool:
        """Goes `by` steps forward, or back if negative, among those that are shown, as far as there are any.
        Returns whether it moved.
        """
        ahead = list(self._ahead(by))[: abs(by)]
        if ahead:
            self.step = ahead[-1]
        return bool(ahead)

    def go_to(self, number: int) -> None:
        """Goes to the step with this number, or to the last one."""
        self.step = max(0, min(number, len(self.steps) - 1))

    def jump(self, flag: str, *, back: bool = False) -> bool:
        """Goes to the next step with this flag, or, with `back`, to the previous one; returns whether there
        is one.
        """
        found = next((at for at in self._ahead(-1 if back else 1) if flag in self.flags(at)), None)
        if found is None:
            return False
        self.step = found
        return True

    def next_filter(self) -> None:
        """Shows the steps of the next transactional id; after the last one, all."""
        ids = ["", *dict.fromkeys(filter(None, (e["transactional_id"] for e in self.document["producers"])))]
        self.transaction = ids[(ids.index(self.transaction) + 1) % len(ids)]
        if self.steps and not self.is_shown(self.step) and not self.move(1):
            self.move(-1)

    def flags(self, number: int) -> Sequence[str]:
        """What is remarkable about a step: "fault", "refusal", "marker", "violation", "late", "lost"."""
        return self.steps[number].get("flags", ())

    def _ahead(self, direction: int) -> Iterator[int]:
        way = range(self.step + 1, len(self.steps)) if direction > 0 else range(self.step - 1, -1, -1)
        return filter(self.is_shown, way)

    # --- the state after this step --------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Every key that has a value after this step."""
        if self._state_at > self.step:
            self._state, self._state_at = {}, -1
        for number in range(self._state_at + 1, min(self.step + 1, len(self.steps))):
            for key, value in self.steps[number].get("changes", {}).items():
                if value is None:
                    self._state.pop(key, None)
                else:
                    self._state[key] = value
        self._state_at = self.step
        return self._state

    def of_kind(self, kind: str) -> list[tuple[str, Any]]:
        """The state of everything of a kind ("txn", "log", "producer", "reader"), by the rest of its key."""
        begins = f"{kind}/"
        state = self.state()
        return [(key.removeprefix(begins), state[key]) for key in sorted(state) if key.startswith(begins)]

    def batches(self, partition: str) -> list[BatchEntry]:
        """The batches in a partition's log after this step, by their offsets."""
        return sorted(
            (
                batch
                for batch in self.document["batches"]
                if batch["partition"] == partition
                and batch["appended"] <= self.step
                and (batch["gone"] is None or batch["gone"] > self.step)
            ),
            key=lambda batch: batch["first"],
        )

    def result(self, batch: BatchEntry) -> str:
        """What is known of a batch after this step: it is open until a marker has decided it."""
        if batch["kind"] != "data":
            return MARKER
        if batch["result"] == PLAIN:
            return PLAIN
        decided = batch["decided"]
        return OPEN if decided is None or decided > self.step else batch["result"]

    def readable(self, partition: str, *, committed: bool) -> tuple[int, list[str]]:
        """How far a reader of a partition can read after this step, and the values that it gets."""
        log = self.state().get(f"log/{partition}", {})
        end = log.get("lso" if committed else "hw", 0)
        values = [
            value
            for batch in self.batches(partition)
            if batch["kind"] == "data" and batch["last"] < end
            if not (committed and self.result(batch) == ABORTED)
            for value in batch["values"]
        ]
        return end, values
