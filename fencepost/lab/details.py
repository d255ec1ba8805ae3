"""What a history does not hold: what each step changed in nodes and readers, and what its messages said.

Rule: it looks and never touches; a world runs the same with it and without it.
"""

from __future__ import annotations

from typing import Any, Final

import attrs


@attrs.frozen(kw_only=True)
class MessageDetails:
    """What a message is about. `error` is the first one that a reply names."""

    transactional_id: str | None = None
    producer_ids: tuple[int, ...] = ()
    error: str | None = None


@attrs.define(eq=False)
class Details:
    """By step: the `changes` of states and the `values` of batches. By number: `messages`. By rule:
    `breaches`, the steps that broke them.
    """

    changes: dict[int, dict[str, Any]] = attrs.Factory(dict[int, dict[str, Any]])
    values: dict[int, tuple[str, ...]] = attrs.Factory(dict[int, tuple[str, ...]])
    messages: dict[int, MessageDetails] = attrs.Factory(dict[int, MessageDetails])
    breaches: dict[str, int] = attrs.Factory(dict[str, int])

    def step_of_breach(self, rule: str) -> int | None:
        """The step that broke this rule, if it is known."""
        return self.breaches.get(rule)


NO_DETAILS: Final = Details()
