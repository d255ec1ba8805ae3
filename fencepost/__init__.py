"""Fencepost: a broker, a client and a simulator that take exactly-once semantics apart."""
