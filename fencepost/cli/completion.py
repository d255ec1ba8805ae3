"""`fencepost --install-completion`: the Tab key completes commands and options."""

from __future__ import annotations

from typing import Literal

from fencepost.cli.errors import WrongUsage
from fencepost.cli.options import AsJson
from fencepost.cli.output import print_done


def install_completion(
    *, shell: Literal["bash", "zsh", "fish"] | None = None, as_json: AsJson = False
) -> None:
    """Install the completion of commands and options for your shell.

    Parameters
    ----------
    shell
        The shell. [default: the one that runs this command]
    """
    from cyclopts.completion import ShellDetectionError

    from fencepost.cli.application import application

    try:
        path = application().install_completion(shell=shell)
    except ShellDetectionError as problem:
        what = "cannot determine which shell runs this command"
        raise WrongUsage(what, then="give --shell bash, zsh or fish") from problem
    print_done(f"Wrote {path}. It applies to new shells.", {"path": str(path)}, as_json=as_json)
