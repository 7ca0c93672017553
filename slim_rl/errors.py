"""Errors sorted by whose fault they are.

The user's are `UserError`: one sentence that says what is wrong, where, and what would be right. A seat
that failed through somebody else's fault is `slim_rl.players.player.PlayerFailed`. All others are ours,
and end in a traceback.
"""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class UserError(Exception):
    """What the user can mend; its text is all that he reads."""


@contextmanager
def told_in_a_sentence() -> Iterator[None]:
    """Turn a `UserError` into its sentence on standard error and exit code 1."""
    # Asked to end (a cancelled flow, a scheduler), it ends as by Ctrl-C: work is kept, servers are ended.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except UserError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("Interrupted; what was finished is kept, the same command goes on from there.")


def _interrupt(*_: object) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so it is in the background of a script
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.raise_signal(signal.SIGINT)
