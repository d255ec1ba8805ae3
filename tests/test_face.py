"""The public names: all there, as the type checker believes, and none loaded before it is used."""

from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import fencepost
from fencepost import FencepostError
from tests.topics import create_topic

SOURCE = Path(fencepost.__file__)


def names_for_type_checkers() -> dict[str, str]:
    """name -> module, as the block under TYPE_CHECKING has it."""
    [block] = [node for node in ast.parse(SOURCE.read_text()).body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in imports for alias in node.names}


def test_every_public_name_is_what_the_type_checker_believes() -> None:
    believed = names_for_type_checkers()
    assert sorted([*believed, "__version__"]) == dir(fencepost)
    for name, module in believed.items():
        assert getattr(fencepost, name) is getattr(sys.modules[module], name)


def test_a_star_import_binds_every_public_name() -> None:
    bound: dict[str, object] = {}
    exec("from fencepost import *", bound)
    assert {*bound} - {"__builtins__"} == {*dir(fencepost)} - {"__version__"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Brokker'"):
        _ = fencepost.Brokker


def test_importing_loads_neither_network_nor_tables() -> None:
    program = "import sys, fencepost; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    loaded = {name for name in done.stdout.split() if name.split(".")[0] in ("trio", "rich", "fencepost")}
    assert loaded == {"fencepost", "fencepost.protocol", "fencepost.protocol.version"}


def test_errors_have_one_parent() -> None:
    errors = [value for name in dir(fencepost) if isinstance(value := getattr(fencepost, name), type)]
    raised = [error for error in errors if issubclass(error, Exception)]
    assert len(raised) > 10
    assert all(issubclass(error, FencepostError) for error in raised)


def test_the_version_is_the_package_s() -> None:
    assert fencepost.__version__ == importlib.metadata.version("fencepost")


def test_a_first_pipeline(tmp_path: Path) -> None:
    """What the README shows: in one process, with the public names alone."""
    with fencepost.Broker(str(tmp_path)) as broker:
        create_topic(broker.address, "orders")
        with fencepost.Producer(broker.address, transactional_id="shop") as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send("orders", b"apple")
        with fencepost.Consumer(broker.address) as consumer:
            consumer.assign([fencepost.TopicPartition("orders", 0)])
            assert [record.value for batch in consumer.poll(10_000) for record in batch] == [b"apple"]
