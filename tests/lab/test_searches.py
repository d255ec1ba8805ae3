"""What a page may search: every workload; a description that is wrong is refused in words."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from fencepost.cli.fuzz import Workload
from fencepost.lab.arguments import BadRequest
from fencepost.lab.searches import search
from fencepost.lab.vocabulary import vocabulary

WRONG: list[tuple[object, str]] = [
    (None, "kind: there is no None (possible: fuzz, explore, shrink)"),
    ({"kind": ["fuzz"]}, "kind: there is no ['fuzz']"),
    ({"kind": "fuzz", "seed": 1}, "seed: not a key here; the keys are first_seed, seeds, workload"),
    ({"kind": "fuzz", "seeds": 0}, "seeds is 0, but must be a whole number from 1 to 1000000"),
    ({"kind": "fuzz", "seeds": True}, "seeds is True, but must be a whole number"),
    ({"kind": "fuzz", "workload": "sleep"}, "workload must be one of ['compaction'"),
    ({"kind": "fuzz", "workload": ["power"]}, "workload is ['power'], but must be text"),
    ({"kind": "fuzz", "broken": "dedup"}, "broken must be a list of texts"),
    ({"kind": "fuzz", "partition_verification": 1}, "partition_verification is 1, but must be true or false"),
    ({"kind": "explore", "producers": 10}, "producers is 10, but must be a whole number from 1 to 9"),
    ({"kind": "explore", "broken": ["sleep"]}, "unknown protection sleep; the protections are dedup"),
    ({"kind": "shrink", "text": 'name = "s"'}, "only a run that `fuzz` found can be shrunk"),
]


def nothing(_: dict[str, Any]) -> None:
    """Nobody listens to the progress."""


@pytest.mark.parametrize(("given", "words"), WRONG, ids=[row[1] for row in WRONG])
def test_what_cannot_be_searched_is_refused_in_words(given: object, words: str) -> None:
    with pytest.raises(BadRequest) as refused:
        search(given, nothing)
    assert words in str(refused.value)


@pytest.mark.parametrize("workload", get_args(Workload))
def test_every_workload_of_the_command_line_is_offered_and_can_be_searched(workload: str) -> None:
    assert workload in vocabulary()["workloads"]
    told: list[dict[str, Any]] = []
    search({"kind": "fuzz", "workload": workload, "seeds": 1}, told.append)
    assert told[-1]["at"] == told[-1]["of"] == 1
