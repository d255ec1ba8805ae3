"""The command line.

Rule: a command imports its dependencies when it runs, so that `fencepost serve` starts fast. The first of
these imports happens in `main`, which ends quietly on Ctrl-C.
"""

import sys


def main() -> None:
    """Runs the command in sys.argv and exits with its code."""
    try:
        import gc

        gc.disable()  # imports create many objects and no garbage: it would scan them hundreds of times
        from fencepost.cli.interruptions import Stopped, resend_dropped_signals

        resend_dropped_signals()
        try:
            from fencepost.cli.application import run_as_process

            gc.enable()
            code = run_as_process(sys.argv[1:])
        except Stopped as stopped:
            code = stopped.code
        gc.freeze()  # the process ends: Python need not look for garbage among all its modules
    except KeyboardInterrupt:
        code = 130  # INTERRUPTED, in a module that may not be imported yet
    sys.exit(code)
