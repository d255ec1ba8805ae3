"""`python -m benchmarks.mock_cluster`: librdkafka's mock cluster of one broker, until stdin ends.

It prints its address as one JSON line once it has answered a request, and keeps records only in memory.
Rule: it imports nothing of this package, because the memory of its process is measured.
"""

from __future__ import annotations

import json
import sys

from confluent_kafka.admin import AdminClient


def main() -> None:
    """Runs the cluster inside a client, the only way that librdkafka offers."""
    cluster = AdminClient({"test.mock.num.brokers": 1, "log_level": 0})
    broker = next(iter(cluster.list_topics(timeout=30).brokers.values()))
    print(json.dumps({"address": f"{broker.host}:{broker.port}"}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
