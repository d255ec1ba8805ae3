"""What a log says, derived a second time: every checker compares the broker with it.

Rule: the package imports the wire formats (`protocol`) and nothing else of Fencepost, and it refuses nothing.
"""

# Theory of operation
#
# A log is a sequence of batches, and everything that a broker knows about a partition follows from them: its
# producers, its open and aborted transactions, its last stable offset, the committed offsets of its groups,
# the decisions of its transaction coordinator. Each module here is a *fold*: an object that starts empty,
# takes one batch after the other, and shows at each point what the log says up to there.
#
#   batches of one partition ────────▶ partitions.PartitionModel    producers, markers, open and aborted
#                                                                   transactions, last stable offset
#   records of __consumer_offsets ───▶ offsets.OffsetsModel         committed and pending offsets
#   records of __transaction_state ──▶ transactions                 decisions, and which of them lack a marker
#   records of __cluster_metadata ───▶ metadata.ClusterModel        topics, leaders, nodes, producer ids
#
# `compaction.CompactedLog` is not a fold over batches, because it must not know how they were cleaned: from
# the committed records and their times it derives which of them a reader may miss.
#
# It has five users. `fencepost check`, `fencepost repair` and `fencepost audit` read data directories with
# it, the white-box judge follows every simulated log with it, the model checker derives from it how each
# record was decided, and pictures of runs take from it which batches were aborted.
#
# The invariant is independence. The broker follows its partitions batch by batch in
# `broker.partitions.partition`, the journal rebuilds transaction indexes with `journal.open_transactions`:
# both are production code, and both are compared with this package. If they shared code with it, one mistake
# would be on both sides of the comparison, and no checker could find it. So the same rules are written here
# again on purpose.
#
# Nothing here refuses a batch, because a log that no broker should have written still has a meaning. The
# checkers say what is wrong with it.
#
# The rules come from Kafka: ProducerAppendInfo and ProducerStateManager (producers, markers),
# GroupMetadataManager (offsets), TransactionStateManager (transactions).
