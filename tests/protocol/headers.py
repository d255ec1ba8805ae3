"""Another header over the records of a batch: for tests alone, as the product builds every batch right."""

from __future__ import annotations

import attrs

from fencepost.protocol.batches import HEADER, BatchHeader


def put_header(batch: bytearray, header: BatchHeader) -> None:
    """Writes the fields of a header as they are, whatever follows from them."""
    HEADER.pack_into(batch, 0, *attrs.astuple(header, filter=lambda field, _: field.init))
