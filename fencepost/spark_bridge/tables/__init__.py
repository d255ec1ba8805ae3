"""The tables that explain a log, `option("table", ...)`: batches, transactions, partitions and more.

Rule: a table is planned on the driver and read by workers, as records are. A retried task gives the
same rows.
"""

# Theory of operation
#
# A table is a `SourceTable`: names and types of its columns, a plan, and the rows of a task. Each stands in
# a file of its own and knows nothing of Spark. `arrow.py` makes Arrow record batches of the rows, with the
# columns that a query asks for.
#
#   batches        one row per batch, from headers alone           a task is a range of offsets
#   partitions     one row per partition                           a task is a few partitions
#   transactions   one row per transaction and partition           a task is a few partitions
#   coordinator    one row per record of `__transaction_state`     a task is a few partitions of that topic
#   losses         what failOnDataLoss=false leaves out            a task is a range of offsets
#
# Workers read only files. What one partition needs of another (the coordinator's states, in `transactions`)
# a worker reads itself, once per process.
