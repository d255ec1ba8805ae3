"""The audit of a log with Spark: what `fencepost check` compares on one machine, compared on a whole cluster.

Rule: it reads tables of the source and judges with the functions of `check` and of the log
model. It writes nothing.
"""

# Theory of operation
#
# Everything about a producer in a partition follows from that producer's batches there, in order. So the
# table `batches`, together with what coordinators decided (from the table `coordinator`), is distributed to
# workers by partition and producer and sorted by offset, and each worker folds its share, a batch at a time:
#
#     coordinator ──by transactional id──▶ folds.fold_histories ──▶ findings
#                                     └──▶ folds.fold_decisions ──▶ decisions
#                                                                       │
#     batches ───────by partition and producer───────────────────▶ folds.fold_producers ──▶ findings
#     transactions, if one is open ──▶ stalled_readers.py: what hangs, is overdue, holds readers ──▶ findings
#     losses ─────────────────────────────────────────────────────────────────────────────────▶ findings
#
# The driver finds the bounds of the logs and their damaged indexes itself (directory.py), as it does to plan.
# A fold keeps what the log model keeps of one producer. Two more audits join records: `acks.py` with a list
# of what was acknowledged, `compare.py` an input topic with an output topic.
