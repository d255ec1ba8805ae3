"""The stream: Spark counts flights and minutes of delay per carrier while `flights` is being written.

Rule: all that a stream remembers is in its checkpoint, so it may be killed inside any micro-batch; the next
one continues, and its last result equals that of a batch query over the whole topic.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fencepost.demo.plan import FLIGHTS, say, wait_for_word
from fencepost.spark_bridge.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RESULT_FILE: Final = "result.json"
MICRO_BATCHES: Final = 4  # about this many for all flights
PARTITIONS: Final = {"spark.sql.shuffle.partitions": "1"}  # each has a state store, and the sums are few
NO_PAUSE: Final = -1  # in place of the number of a micro-batch
FLIGHT_FIELDS: Final = "carrier STRING, departed_late INT"

Sums = dict[str, list[int]]
"""The number of flights and the minutes of delay at departure, by carrier."""


def sums_per_carrier(flights: DataFrame) -> DataFrame:
    """Aggregates records of `flights`, in a stream or in a batch."""
    from pyspark.sql import functions as f

    text = f.col("value").cast("string")
    flight = flights.select(f.from_json(text, FLIGHT_FIELDS).alias("flight")).select("flight.*")
    return flight.groupBy("carrier").agg(
        f.count("*").alias("flights"), f.coalesce(f.sum("departed_late"), f.lit(0)).alias("minutes")
    )


def collected(sums: DataFrame) -> Sums:
    """The rows of `sums_per_carrier` as Python values."""
    return {row["carrier"]: [row["flights"], row["minutes"]] for row in sums.collect()}


def result_of(directory: Path) -> Sums:
    """The last result that a stream has written to its directory."""
    return json.loads((directory / RESULT_FILE).read_text())


class Writer:
    """Writes each result in place of the one before, and pauses inside the micro-batch `pause_at`."""

    def __init__(self, directory: Path, *, pause_at: int) -> None:
        self.batches = 0
        self._result = directory / RESULT_FILE
        self._pause_at = pause_at

    def write(self, sums: DataFrame, batch_id: int) -> None:
        """Called by Spark; it commits the micro-batch to the checkpoint when this returns."""
        counted = collected(sums)
        if batch_id == self._pause_at:
            say("at", batch=batch_id)
            wait_for_word()
        fresh = self._result.with_suffix(".fresh")
        fresh.write_text(json.dumps(counted))
        fresh.replace(self._result)
        self.batches = batch_id + 1


def main() -> None:
    """The process: `python -m fencepost.demo.stream DATA DIRECTORY OFFSETS_PER_TRIGGER PAUSE_AT`.

    It reports that it has reached the micro-batch PAUSE_AT and waits there to be killed. Without a pause it
    ends after a word from its parent, when it has read everything.
    """
    data, place, offsets_per_trigger, pause_at = sys.argv[1:]
    directory = Path(place)
    directory.mkdir(exist_ok=True)
    writer = Writer(directory, pause_at=int(pause_at))
    with session("fencepost-demo-stream", settings=PARTITIONS) as spark:
        stream = spark.readStream.format("fencepost").option("subscribe", FLIGHTS)
        stream = stream.option("startingOffsets", "earliest")
        stream = stream.option("maxOffsetsPerTrigger", offsets_per_trigger)
        query = (
            sums_per_carrier(stream.load(data))
            .writeStream.outputMode("complete")
            .foreachBatch(writer.write)
            .option("checkpointLocation", str(directory / "checkpoint"))
            .start()
        )
        if int(pause_at) == NO_PAUSE:
            wait_for_word()
            query.processAllAvailable()
            query.stop()
            say("finished", batches=writer.batches)
        else:
            query.awaitTermination()


if __name__ == "__main__":
    main()
