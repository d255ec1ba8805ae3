"""The log: segments, indexes and recovery over a storage interface."""

# Each line uses only what is above it:
#
#     storage                          what a disk promises; implemented by disk, memory and simulated
#     open_files                       how many log files are open at a time
#     indexes                          the files beside a segment
#     open_transactions, manifest      which transactions a log leaves open; the JSON files of a partition
#     segments                         batches in one file, and the walk over them
#     recovery                         the valid prefix of the segments after a crash
#     log_segments                     the segments of one log: lookup and reads
#     journal                          one log: append, roll, sync, retention
#     compaction, cleaning             what compaction leaves of a log; how cleaned segments take their place
#     catalogue                        which logs a data directory holds
#     data_directory                   all partitions of a broker
