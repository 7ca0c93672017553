"""Parameters of the study."""

from pydantic import Field

from slim_rl.core.parameters import Section


class Parameters(Section):
    samples: int = Field(4, ge=1)
    """Episodes of each held-out task; pass@k is known for k up to this."""
