"""Command lines: every entry point has --help, refuses what it does not know, and ends errors in a sentence."""

import argparse
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from slim_rl.core.errors import UserError


def run_stage(main: Callable[[], object], description: str | None) -> None:
    """Run an entry point that takes no arguments."""
    argparse.ArgumentParser(description=(description or "").strip()).parse_args()
    with told_in_a_sentence():
        main()


@contextmanager
def told_in_a_sentence() -> Iterator[None]:
    """Print a `UserError` as one sentence and exit with code 1. SIGTERM is handled like Ctrl-C."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except UserError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("Interrupted. What was finished is kept; the same command goes on from there.")


def _interrupt(*_: object) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a script
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.raise_signal(signal.SIGINT)
