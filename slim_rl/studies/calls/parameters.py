"""Parameters of the study."""

from pydantic import PositiveInt

from slim_rl.core.parameters import Section


class Parameters(Section):
    references: tuple[str, ...] = ("guesses",)
    """Players that the game knows. The first one never calls."""
    forced: tuple[PositiveInt, ...] = (1,)
    """How many calls are forced, one arm for each; then the model may call no more. The calls are those of the game's
    player `calls`. Calls are also forbidden, as an arm of its own."""
