"""Errors sorted by whose fault they are.

- `UserError`: the user's. One sentence says what is wrong, where, and what would be right.
- `EpisodeFailed`: somebody else's (an engine, a service, a game's environment). The episode is marked `failed`:
  it earns nothing, trains nothing, and can be played again.
- Anything else: ours. It ends in a traceback.
"""


class UserError(Exception):
    """An error the user can fix. The message is shown without a traceback."""


class EpisodeFailed(Exception):
    """An infrastructure failure stopped the episode.

    The episode records the exception this one was raised from, or its own text, then written `Class: message`.
    """


class PlayerFailed(EpisodeFailed):
    """An engine or service gave no reply."""


class RewardFailed(EpisodeFailed):
    """What judges an episode gave no reward."""


class GameFailed(EpisodeFailed):
    """The game's environment broke: a tool server is gone, a sandbox did not start."""
