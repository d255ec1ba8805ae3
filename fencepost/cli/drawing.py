"""How commands show a run: as a table on stdout, and as SVG pictures, slides or pages in files.

Rule: what is wrong with the options is found before the first run, and a step or lane that a run does not
have is an error, never an empty picture.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import attrs
from cyclopts import Parameter, validators

from fencepost.cli.errors import WrongUsage
from fencepost.cli.files import PICTURE, Target
from fencepost.cli.html_pages import Pages, numbered
from fencepost.cli.options import NOT_EMPTY, Flag
from fencepost.cli.table import terminal_width

if TYPE_CHECKING:
    from fencepost.simulator.world.history import History

WIDTH_MIN: Final = 60
WIDTH_IN_PIPE: Final = 160
SVG: Final = ".svg"


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class DrawOptions:
    """What to show of a run, and how."""

    text: Annotated[
        Flag, Parameter(help="Print each run as a table: one column per client and node, time downwards.")
    ] = False
    svg: Annotated[
        Path | None,
        Parameter(
            help="Draw the run to this SVG file; further pictures go to NAME-2.svg, NAME-3.svg, and so on."
        ),
    ] = None
    html: Annotated[
        Path | None,
        Parameter(
            help="Write a page to this HTML file, on which you step through the run in a browser; further "
            "pages go to NAME-2.html, and so on."
        ),
    ] = None
    width: Annotated[
        int | None,
        Parameter(
            validator=validators.Number(gte=WIDTH_MIN),
            help="Width of the table in characters. [default: COLUMNS, or the width of the terminal]",
        ),
    ] = None
    ascii: Annotated[Flag, Parameter(help="Write the table with ASCII characters only.")] = False
    slide: Annotated[Flag, Parameter(help="Draw 16:9 slides with large type, as many as the run needs.")] = (
        False
    )
    scale: Annotated[
        float, Parameter(validator=validators.Number(gte=0.1, lte=10), help="Size of the pictures.")
    ] = 1.0
    since: Annotated[
        str,
        NOT_EMPTY,
        Parameter(
            "--from",
            show_default=False,
            help="First step to show: the number of a message, or a time such as 3.8ms.",
        ),
    ] = ""
    until: Annotated[
        str,
        NOT_EMPTY,
        Parameter(show_default=False, help="Last step to show, as if the run had ended there."),
    ] = ""
    only: Annotated[
        str,
        NOT_EMPTY,
        Parameter(
            show_default=False, help='Lanes (columns) to show, by their names: "p,node 1,txn app,log t-0".'
        ),
    ] = ""

    @property
    def wanted(self) -> bool:
        """Whether a table or a picture is to be shown."""
        return self.text or self.svg is not None

    @property
    def is_partial(self) -> bool:
        """Whether only a part of a run is to be shown."""
        return bool(self.since or self.until or self.only)


NO_DRAWING: Final = DrawOptions()


@attrs.define
class Pictures:
    """Shows runs, and numbers the files of their pictures. `pages` writes their pages."""

    options: DrawOptions
    count: int = 0
    pages: Pages = attrs.field(
        init=False, default=attrs.Factory(lambda self: Pages(self.options.html), takes_self=True)
    )

    def check(self, *, as_json: bool) -> None:
        """CommandFailed if the options contradict each other, or the picture cannot be written."""
        given = self.options
        self.pages.check()
        if given.text and as_json:
            raise WrongUsage("--text and --json both write to standard output", then="give one of them")
        if given.svg is not None:
            _picture(given.svg).check()
        elif given.slide or given.scale != 1:
            option = "--slide" if given.slide else "--scale"
            raise WrongUsage(f"{option} applies to pictures only", then="add --svg FILE")
        elif not given.text and given.is_partial:
            raise WrongUsage(
                "--from, --until and --only apply to tables and pictures only",
                then="add --text, or --svg FILE",
            )

    def part_of(self, history: History) -> tuple[History, int]:
        """The part of a run to show, and the place of its first event that gets a row; CommandFailed if the
        run has no such part.
        """
        from fencepost.simulator.draw.crop import Crop, NothingToDraw

        given = self.options
        only = tuple(lane.strip() for lane in given.only.split(",") if lane.strip())
        try:
            return Crop(since=given.since, until=given.until, only=only).of(history)
        except NothingToDraw as nothing:
            then = f"`fencepost run ... --text` shows the steps and lanes of {history.title!r}"
            raise WrongUsage(str(nothing), then=then) from None

    def show(self, history: History) -> list[Path]:
        """Prints the table and writes the pictures of one run; returns the files of the pictures."""
        from fencepost.simulator.draw.slides import slides
        from fencepost.simulator.draw.svg import draw

        given = self.options
        part, first = self.part_of(history)
        if given.text:
            print(self._table(part, first))
        if given.svg is None:
            return []
        drawn = slides(part, first=first, scale=given.scale) if given.slide else None
        pictures = drawn or [draw(part, first=first, scale=given.scale)]
        return [self._write(given.svg, picture) for picture in pictures]

    def _table(self, history: History, first: int) -> str:
        from fencepost.simulator.draw.text import in_ascii, space_time

        given, said = self.options, os.environ.get("COLUMNS", "")
        columns = int(said) if said.isdecimal() else terminal_width()
        width = given.width or (columns and max(columns, WIDTH_MIN))
        table = space_time(history, width=width or WIDTH_IN_PIPE, folds=width is not None, first=first)
        return in_ascii(table) if given.ascii else table

    def _write(self, svg: Path, picture: str) -> Path:
        self.count += 1
        target = _picture(numbered(svg, self.count, SVG))
        target.check()
        target.write(picture)
        return target.path


def _picture(path: Path) -> Target:
    return Target(path=path, option="--svg", kind=PICTURE)
