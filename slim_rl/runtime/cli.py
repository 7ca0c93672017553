"""Command lines: every entry point has --help, rejects unknown arguments, and reports a user's error in a sentence."""

import argparse
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from slim_rl.core.errors import UserError
from slim_rl.runtime.heap import share_freed_memory


def run_stage(main: Callable[[], object], description: str | None) -> None:
    """Run an entry point that takes no arguments."""
    argument_parser(description).parse_args()
    share_freed_memory()
    with told_in_a_sentence():
        main()


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser that names the module as the user started it; `description` is the module's docstring."""
    spec = sys.modules["__main__"].__spec__
    return argparse.ArgumentParser(
        prog=f"python -m {spec.name}" if spec else None,
        description=(description or "").strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


@contextmanager
def told_in_a_sentence() -> Iterator[None]:
    """Print a `UserError` as one sentence and exit with code 1. SIGTERM and SIGHUP are handled like Ctrl-C."""
    for kind in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(kind) is not signal.SIG_IGN:  # as under nohup
            signal.signal(kind, _interrupt)
    try:
        yield
    except UserError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("Interrupted. Finished work is kept; the same command continues from there.")


def _interrupt(*_: object) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a script
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.raise_signal(signal.SIGINT)
