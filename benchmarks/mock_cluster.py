"""`python -m benchmarks.mock_cluster`: librdkafka's mock cluster of one broker, until stdin ends.

Rule: says its address as one JSON line once it has answered a request. It keeps records in memory alone.
"""

from __future__ import annotations

import json
import sys

from confluent_kafka.admin import AdminClient


def main() -> None:
    """Runs the cluster inside a client, which is how librdkafka offers it."""
    cluster = AdminClient({"test.mock.num.brokers": 1, "log_level": 0})
    broker = next(iter(cluster.list_topics(timeout=30).brokers.values()))
    print(json.dumps({"address": f"{broker.host}:{broker.port}"}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
