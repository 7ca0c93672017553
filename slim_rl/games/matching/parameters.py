"""Parameters of the matching game."""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from slim_rl.core.parameters import GameParameters, PlayerName

Wordings = Literal["usual", "held-out", "reordered"]
"""The sentences in which a scripted partner answers."""

MAX_SCALE = 1000.0
"""The largest private scale factor; DialOp's own game goes up to 10."""


class Parameters(GameParameters):
    """The boards of the paper-reviewer matching game, and how its scripted players behave.

    Parameters left out take the values of the selection: `dialop` is DialOp's own game (both players see 0.4 of
    the cells, on private scales); with `stakes` the selection of boards tells a player nothing.
    """

    presets: ClassVar = {
        "selection": {
            "dialop": dict(p_agent=0.4, p_rough=0.0, p_partner=0.4, scale_range=(1.0, 10.0), stake=1.25, patience=None,
                           question_price=(0, 0)),
            "stakes": {},
        }
    }  # fmt: skip
    seating: tuple[PlayerName, ...] = ("policy", "scripted")
    size: int = Field(3, ge=2, le=8)
    """Number of reviewers, and of papers."""
    selection: Literal["stakes", "dialop"] = "stakes"
    """Which boards are kept; see `slim_rl.games.matching.board.passes`."""
    p_agent: float = Field(0.2, ge=0, le=1)
    """Probability that player 1 sees a cell."""
    p_rough: float = Field(0.0, ge=0, le=1)
    """Probability that player 1 knows a score that it does not see to a band of ten, such as 40 to 49. Its partner sees
    all of them then."""
    p_partner: float = Field(0.8, ge=0, le=1)
    """Probability that player 2 sees a cell."""
    scale_range: tuple[float, float] = (1.0, 1.0)
    """Bounds of each player's private scale factor, which is drawn uniformly."""
    stake: float = Field(1.4, ge=1)
    """Keep a board if its pooled optimum is more than this multiple of a baseline: with `stakes` the mean over all
    assignments, with `dialop` what each player would choose alone."""
    on_the_fly: bool = False
    """Store only seeds in the games file, and make each board when it is played."""
    always_accept: bool = True
    """The partner accepts every full proposal, so the reward measures the proposal alone."""
    patience: tuple[int, int] | None = None
    """Bounds of a shy partner's patience, drawn uniformly for each game and told: it answers about at most so many
    cells, then it stays vague. Without it, it answers about any number."""
    spare_turns: tuple[int, int] = (2, 4)
    """With `patience`: the first player's turns beyond one for each cell and one for the proposal, drawn uniformly for
    each game between these bounds. It has at least 2 turns, and with its partner at most `max_turns`."""
    turns_told: bool = True
    """Whether the players are told how many turns are left. If they are, patience above the number of turns carries no
    information: a player that asks until its turns end gets as many scores."""
    question_price: tuple[int, int] = (0, 0)
    """Bounds of what each cell asked for costs the one who asks, in percent of the best sum; drawn uniformly for each
    game and told."""
    wordings: Wordings = "usual"
    """The wordings in which scripted partners answer; the others are for evaluation."""
    instructions: Literal["full", "short"] = "full"
    """What a player reads before its board. `short` leaves out the rules, which a model that was made by imitation
    has learnt."""
    max_questions: int = Field(9, ge=1)
    """Maximum questions of a demonstration, and of the base model that is not allowed to stop."""
    write_sums: bool = False
    """Demonstrators write the sum of each assignment in a thought before they propose, for a model that does not add in
    its head. For up to 3 reviewers, without private scales."""

    @model_validator(mode="after")
    def _policy_asks(self) -> "Parameters":
        if self.seating[0] != "policy":
            raise ValueError(f"seating must begin with policy, whose questions are judged, not with {self.seating[0]}")
        return self

    @model_validator(mode="after")
    def _bounds_in_order(self) -> "Parameters":
        limits = {
            "patience": (0, 64),
            "spare_turns": (-64, 64),
            "question_price": (0, 100),
            "scale_range": (1, MAX_SCALE),
        }
        for name, (least, most) in limits.items():
            low, high = getattr(self, name) or (least, most)
            if not least <= low <= high <= most:
                bounds = f"{least} <= low <= high <= {most:g}"
                raise ValueError(f"{name} must be two numbers with {bounds}, not {low:g}, {high:g}")
        return self

    @model_validator(mode="after")
    def _all_rough_scores_can_be_asked_for(self) -> "Parameters":
        if self.p_rough and (self.scale_range != (1, 1) or self.p_partner < 1):
            raise ValueError(
                "p_rough is for boards without private scales that the partner sees whole: set scale_range to [1, 1] and "
                "p_partner to 1, or p_rough to 0"
            )
        return self
