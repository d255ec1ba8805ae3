"""What findings about the files next to a log mean for readers and for the next start."""

from __future__ import annotations

from typing import Final

SEEKS: Final = "readers that seek with it start at the wrong place"
REBUILT: Final = "the next start rebuilds it from the log"
MISFILTERED: Final = "readers get records of aborted transactions, or miss committed ones"
MISLED: Final = "after a restart the broker checks this producer's batches against a wrong state"
FORGOTTEN: Final = "the broker forgets a producer that is silent for producer.id.expiration.ms by its clock"
UNKNOWN: Final = (
    "the producers of deleted records are forgotten; a batch that one of them retries is stored again"
)
DROPPED: Final = "it is dropped, and the next start reads more of the log"
READERS: Final = "readers without a broker see too much or too little"
LOST: Final = "readers were promised records that are not there"
POWER: Final = "a loss of power took what was not synced; the next start removes this file"
MOVED: Final = "a loss of power took the end of the deleted records; the next start moves the log start there"
DELETED: Final = "records that were deleted are readable again, or live ones are not"
REREAD: Final = "the next start reads all of the log"
TRUSTED: Final = "the next start does not scan the segment and trusts these wrong values"
RENAMED: Final = "the broker refuses this log; `fencepost repair` corrects it"
REPLACED: Final = "the broker refuses this log; put the right file back, if there is a copy"
REFUSED: Final = "the broker refuses this log; `fencepost repair` lists what can be saved"
