"""`fencepost help`: the pages of the documentation, from the package itself.

Rule: errors and help texts name a page by this command, so that it exists wherever they are read.
"""

from __future__ import annotations

import sys

from fencepost.bundled import bundled_pages
from fencepost.cli.errors import WRONG_USAGE, CommandFailed
from fencepost.cli.output import Columns, print_rows
from fencepost.faults.grammar import suggestion

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
        titles = [
            (name, path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# "))
            for name, path in pages.items()
        ]
        print_rows(PAGES, titles, as_json=False)
        return
    if page not in pages:
        raise CommandFailed(
            f"the documentation has no page {page!r}{suggestion(page, tuple(pages))}",
            then="`fencepost help` lists the pages",
            code=WRONG_USAGE,
        )
    sys.stdout.write(pages[page].read_text(encoding="utf-8"))
