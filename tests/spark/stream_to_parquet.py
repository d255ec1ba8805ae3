"""A streaming job in a process of its own, to be killed: `stream_to_parquet DATA CHECKPOINT OUTPUT`.

It reads topic `orders` up to its end, a few offsets per micro-batch, and writes each micro-batch to a
directory with its number. A micro-batch that is repeated replaces its directory, so the job is exactly once
if it gets the same rows. It prints a line before and after each micro-batch is written.
"""

import sys
from typing import TYPE_CHECKING

from fencepost.spark_bridge.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

OFFSETS_PER_TRIGGER = 40


def start(spark: "SparkSession", data: str, checkpoint: str, output: str) -> "StreamingQuery":
    """Starts the job; it ends by itself when it has read everything."""

    def write(frame: "DataFrame", batch_id: int) -> None:
        print(f"begins {batch_id}", flush=True)
        columns = frame.select("partition", "offset", "key", "value", "timestamp")
        columns.write.mode("overwrite").parquet(f"{output}/{batch_id}")
        print(f"wrote {batch_id}", flush=True)

    stream = spark.readStream.format("fencepost").option("subscribe", "orders")
    stream = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", OFFSETS_PER_TRIGGER)
    frame = stream.option("minPartitions", 3).load(data)
    writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    return writer.trigger(availableNow=True).start()


def main() -> None:
    data, checkpoint, output = sys.argv[1:]
    with session("stream to parquet", master="local[2]") as spark:
        start(spark, data, checkpoint, output).awaitTermination()
        print("done", flush=True)


if __name__ == "__main__":
    main()
