"""The ground: terms, errors, messages, record batches and frames. No I/O, no clock, no randomness."""

# Each line uses only what is above it:
#
#     errors, terms, values            Kafka's error codes, the shared words, the decorator of messages
#     primitives                       Kafka's varints, strings, arrays and tagged fields
#     batches                          the header of a record batch, its checksum, transaction markers
#     compression, kafka_records       what is inside a batch: compressed or not, in Kafka's layout
#     records                          the same as columns, in msgpack or from Kafka's layout
#     metadata_log, offsets_log,       the records of Kafka's internal topics, and the bytes that the
#     transaction_log,                 members of a group exchange
#     consumer_protocol
#     codec, messages, frames          requests and replies: their encoding, their classes, their framing
#     fork                             forks and fingerprints of states
