"""Reads back what a page carries: its run documents."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any


def runs_in(page: Path) -> dict[str, Any]:
    """The documents of a page, and the divergence of two."""
    packed = re.search(r'<script type="text/plain" id="runs">([^<]+)</script>', page.read_text("utf-8"))
    assert packed is not None, f"{page} is not a page of runs"
    runs: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(packed[1])))
    return runs
