"""Partitions: producers, open transactions, the offsets that bound readers, and the requests on them."""
