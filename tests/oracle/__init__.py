"""Conversations recorded from Apache Kafka 4.3.1, and a player that compares its answers with ours."""
