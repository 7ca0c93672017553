"""Sums that a small model cannot do in its head, and a tool that can. Does it learn to call the tool?"""

from pydantic import Field

from slim_rl.core.game import Taskset
from slim_rl.core.parameters import GameParameters


class Parameters(GameParameters):
    max_turns: int = Field(4, ge=1)
    largest: int = Field(31, ge=4, le=999)
    """Largest number in a sum. Answers are whole numbers from 0 to `largest` squared."""
    answer_shown: bool = False
    """Whether the prompt tells the answer. Then no call is needed: the control of the study of calls."""
    call_price: float = Field(0.0, ge=0, le=1)
    """Deducted from the reward for each call."""


def taskset(parameters: Parameters, seed: int, variant: str) -> Taskset:
    from slim_rl.games.calculator.tasks import Sums

    return Sums(parameters, seed)
