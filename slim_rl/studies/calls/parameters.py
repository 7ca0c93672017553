"""Parameters of the study."""

from pydantic import Field, PositiveInt

from slim_rl.core.parameters import Section


class Parameters(Section):
    references: tuple[str, ...] = ("guesses",)
    """Players that the game knows. The first one never calls."""
    caller: str | None = "calls"
    """The player that the game knows whose calls are forced upon the model; null for no forced calls."""
    forced: tuple[PositiveInt, ...] = (1,)
    """How many calls are forced, one arm for each; then the model may call no more. No call at all is an arm in any case."""
    intervention_tasks: int = Field(512, ge=0)
    """Held-out tasks that are played with calls forbidden or forced."""
    prices: tuple[float, ...] = (0.05, 0.1, 0.25, 0.5)
    """Prices per call at which free play is valued."""
