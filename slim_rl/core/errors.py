"""Errors sorted by whose fault they are.

- `UserError`: the user's. One sentence says what is wrong, where, and what would be right.
- `EpisodeFailed`: somebody else's (an engine, a service, a game's environment). The episode is marked `failed`:
  it earns nothing, trains nothing, and can be played again.
- Anything else: ours. It ends in a traceback.
"""

import math


class UserError(Exception):
    """An error the user can fix. The message is shown without a traceback."""


class Diverged(UserError):
    """A number of a model or of its training is infinite or not a number; training with a smaller rate may avoid it."""


class EpisodeFailed(Exception):
    """An infrastructure failure stopped the episode.

    The episode records the exception this one was raised from, or its own text, then written `Class: message`.
    """


def finite(value: object) -> float:
    """The number that somebody else's code or server gave. Raises ValueError: it is none, or not a finite one."""
    try:
        number = float(value)  # type: ignore[arg-type]
        if not isinstance(value, str | bytes) and math.isfinite(number):
            return number
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last is torch's, of a tensor of several numbers
        pass
    raise ValueError(f"{str(value)[:100]} is no finite number")


class PlayerFailed(EpisodeFailed):
    """An engine or service gave no reply."""


class RewardFailed(EpisodeFailed):
    """What judges an episode gave no reward."""


class GameFailed(EpisodeFailed):
    """The game's environment broke: a tool server is gone, a sandbox did not start."""
