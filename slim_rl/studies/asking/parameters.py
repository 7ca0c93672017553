"""Parameters of the study."""

from slim_rl.core.parameters import Section


class Parameters(Section):
    pass
