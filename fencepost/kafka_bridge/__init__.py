"""Kafka's wire protocol in front of the broker: Kafka's own clients connect as they do to Apache Kafka."""
