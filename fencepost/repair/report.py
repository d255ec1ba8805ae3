"""A plan in words and as JSON: what is damaged, what is at stake, what the repair saves or saved."""

from __future__ import annotations

from typing import Any

from fencepost.repair.plan import DamageReport, Plan


def in_words(plan: Plan, asides: list[str] | None) -> list[str]:
    """The lines of a report; `asides` is None in a dry run, else where the originals are."""
    lines = [line for damage in plan.damages for line in _damage_in_words(damage)]
    if plan.notes:
        lines += ["", *(f"* {note}" for note in plan.notes)]
    if asides:
        lines += ["", f"The damaged originals are in {', '.join(asides)}."]
    return lines


def _damage_in_words(damage: DamageReport) -> list[str]:
    where = damage.file if damage.span is None else f"{damage.file}, bytes {_span(damage.span)}"
    return [
        f"{damage.kind}: {where}",
        f"    found     {damage.because}",
        f"    at stake  {damage.stake}",
        f"    saved     {damage.saved}",
    ]


def _span(span: tuple[int, int]) -> str:
    return f"{span[0]:,} to {span[1] - 1:,}"


def as_facts(plan: Plan, asides: list[str] | None) -> dict[str, Any]:
    """The same as one JSON object."""
    return {
        "directory": plan.location,
        "repaired": asides is not None,
        "damages": [
            {
                "file": damage.file,
                "kind": damage.kind,
                "because": damage.because,
                "first_offset": None if damage.offsets is None else damage.offsets[0],
                "last_offset": None if damage.offsets is None else damage.offsets[1],
                "first_byte": None if damage.span is None else damage.span[0],
                "end_byte": None if damage.span is None else damage.span[1],
                "at_stake": damage.stake,
                "saved": damage.saved,
            }
            for damage in plan.damages
        ],
        "transactions": [
            {
                "partition": str(each.partition),
                "transactional_id": each.transactional_id,
                "producer_id": each.producer_id,
                "producer_epoch": each.producer_epoch,
                "first_offset": each.first_offset,
                "result": each.result.name,
                "is_proven": each.is_proven,
            }
            for log in plan.logs
            for each in log.settled
        ],
        "notes": plan.notes,
        "set_aside": asides or [],
    }
