"""Run documents as one HTML file that needs nothing else: no server, no network, no build.

The page is `static/page.html` with the modules of `static/` in it. Modules import each other by bare names,
such as `lab/run.js`, which an import map resolves: in a file to data: URLs, on a served page to its server's
paths. So the same modules run in both, and each keeps its own file.

Rule: nothing from a run becomes markup. Documents travel as compressed base64, titles are escaped, and the
content security policy of the page allows its own scripts and styles by hash and no connection at all.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Final

from fencepost.lab.document import Json, RunDocument
from fencepost.protocol.terms import escaped

STATIC: Final = Path(__file__).parent / "static"
SERVED_ONLY: Final = frozenset(
    {
        "api.js",
        "asked.js",
        "completion.js",
        "editor.js",
        "lab.js",
        "live.js",
        "menu.js",
        "scenarios.js",
        "searches.js",
        "whatif.js",
    }
)
"""Modules that only a served page has: they talk to its server."""

VENDORED: Final = {
    "preact": "vendor/preact.js",
    "preact/hooks": "vendor/preact-hooks.js",
    "htm": "vendor/htm.js",
}
STYLES: Final = ("lab.css",)
SERVED_STYLES: Final = (*STYLES, "served.css", "live.css")
_ENTRY: Final = 'import "lab/main.js";'


def file_page(documents: Sequence[RunDocument], *, divergence: tuple[int, int] | None = None) -> str:
    """A page that is one file: of one run, or of two side by side. `divergence` is the first step of each at
    which two runs differ. The same documents give the same bytes.
    """
    runs: Json = {"documents": documents, "divergence": divergence}
    # A timestamp in gzip's header would make every file different.
    packed = gzip.compress(_json(runs).encode(), compresslevel=9, mtime=0)
    return _page(
        title=" | ".join(dict.fromkeys(document["title"] for document in documents)),
        boot={"mode": "file"},
        imports=_data_imports(),
        policy={"script-src": "data:", "img-src": "data:"},
        styles=STYLES,
        runs=f'<script type="text/plain" id="runs">{base64.b64encode(packed).decode()}</script>',
    )


def served_page(boot: Mapping[str, Json], *, static: str = "static/") -> str:
    """A page whose server has `STATIC` below the path `static`. `boot` is what its first module gets; its
    "mode" names the module.
    """
    return _page(
        title="Fencepost lab",
        boot=boot,
        imports={name: f"./{static}{path}" for name, path in VENDORED.items()} | {"lab/": f"./{static}"},
        policy={"script-src": "'self'", "img-src": "'self' data:", "connect-src": "'self'"},
        styles=SERVED_STYLES,
        runs="",
    )


def _page(
    *,
    title: str,
    boot: Mapping[str, Json],
    imports: Mapping[str, str],
    policy: Mapping[str, str],
    styles: Sequence[str],
    runs: str,
) -> str:
    style = "".join((STATIC / name).read_text(encoding="utf-8") for name in styles)
    imported = _json({"imports": imports})
    allowed = {
        "default-src": "'none'",
        **policy,
        "script-src": f"{_hash(imported)} {_hash(_ENTRY)} {policy['script-src']}",
        "style-src": _hash(style),
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    filled = {
        "policy": "; ".join(f"{name} {sources}" for name, sources in allowed.items()),
        "title": escape(escaped(title)),
        "style": f"<style>{style}</style>",
        "imports": imported,
        "boot": _json(boot),
        "runs": runs,
        "entry": _ENTRY,
    }
    page = (STATIC / "page.html").read_text(encoding="utf-8")
    # In one pass: a title may hold the name of a place in braces, and that is not a place.
    return re.sub(r"\{(\w+)\}", lambda place: filled[place[1]], page)


def _data_imports() -> dict[str, str]:
    own = {f"lab/{path.name}": path for path in sorted(STATIC.glob("*.js")) if path.name not in SERVED_ONLY}
    vendored = {name: STATIC / path for name, path in VENDORED.items()}
    return {
        name: f"data:text/javascript;base64,{base64.b64encode(path.read_bytes()).decode()}"
        for name, path in (vendored | own).items()
    }


def _json(value: Json) -> str:
    """JSON that can stand in a script element: no text in it can end that element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
