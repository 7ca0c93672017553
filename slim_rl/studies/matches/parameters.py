"""Parameters of the study."""

from typing import Annotated

from pydantic import Field

from slim_rl.core.parameters import Section


class Parameters(Section):
    opponents: tuple[Annotated[str, Field(pattern=r"^\w+$")], ...] = ()
    """Players without a model that every model plays against; by default those that the game names."""
    snapshot_games: int = Field(100, ge=1)
    """Games of each pair in each seating. The trained model plays all held-out games unless it meets a snapshot."""
