"""The ground's tests: known bytes of Apache Kafka, round trips, limits, and bytes from strangers."""
