"""A job with Spark's own Kafka source and sink: `spark_copy SERVERS CHECKPOINT`.

For each line on stdin it copies what was committed since the last time from topic `orders` to topic
`copies`, and prints what a batch query reads from `orders`: [partition, offset, value] of each record.
"""

import json
import sys
from typing import TYPE_CHECKING, Final

from fencepost.spark_bridge.session import SHORT_RUN, session
from tests.kafka_bridge.java import TARGET

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JARS: Final = TARGET / "spark"
OFFSETS_PER_TRIGGER: Final = 8


def copy(spark: "SparkSession", servers: str, checkpoint: str) -> None:
    """Continues the query of this checkpoint, up to the end."""
    stream = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    stream = stream.option("subscribe", "orders").option("kafka.isolation.level", "read_committed")
    stream = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", OFFSETS_PER_TRIGGER)
    writer = stream.load().select("key", "value").writeStream.format("kafka")
    writer = writer.option("kafka.bootstrap.servers", servers).option("topic", "copies")
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()


def read(spark: "SparkSession", servers: str) -> list[list[object]]:
    """What a batch query reads."""
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", servers)
    frame = reader.option("subscribe", "orders").option("kafka.isolation.level", "read_committed").load()
    rows = frame.selectExpr("partition", "offset", "CAST(value AS STRING)").collect()
    return sorted(list(row) for row in rows)


def main() -> None:
    servers, checkpoint = sys.argv[1:]
    jars = ",".join(map(str, JARS.glob("*.jar")))
    settings = SHORT_RUN | {"spark.jars": jars}
    with session("spark copy", master="local[2]", settings=settings) as spark:
        for _ in sys.stdin:
            copy(spark, servers, checkpoint)
            print(json.dumps(read(spark, servers)), flush=True)


if __name__ == "__main__":
    main()
