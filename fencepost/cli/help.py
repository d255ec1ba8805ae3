"""`fencepost help`: the pages of the documentation, from the package itself.

Rule: errors and help texts name a page by this command, so that it exists wherever they are read.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fencepost.bundled import bundled_pages
from fencepost.cli.errors import WrongUsage
from fencepost.cli.output import Columns, print_rows
from fencepost.protocol.suggestions import suggestion

PAGES: Columns[tuple[str, str]] = (
    ("page", "PAGE", lambda page: page[0]),
    ("title", "TITLE", lambda page: page[1]),
)


def print_page(page: str | None = None, /) -> None:
    """Print a page of the documentation, or list the pages.

    Parameters
    ----------
    page
        The name of the page.
    """
    pages = bundled_pages()
    if page is None:
        titles = [(name, _text(path).partition("\n")[0].lstrip("# ")) for name, path in pages.items()]
        print_rows(PAGES, titles, as_json=False)
        return
    if page not in pages:
        raise WrongUsage(
            f"the documentation has no page {page!r}{suggestion(page, tuple(pages))}",
            then="`fencepost help` lists the pages",
        )
    sys.stdout.write(_text(pages[page]))


def _text(path: Path) -> str:
    """A page as people read it: without the settings of a program that shows it as slides."""
    text = path.read_text(encoding="utf-8")
    return text.partition("\n---\n")[2].lstrip("\n") if text.startswith("---\n") else text
