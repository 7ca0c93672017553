"""What a report calls the players."""

_STEP, _RULE = "step-", "rule-"
_TITLES = {
    "base": "Base model",
    "trained": "Trained model",
    "policy": "In training",
    "humans": "People",
    "random": "Random play",
    "scripted": "Scripted player",
}


def step_of(player: str) -> int | None:
    """The training steps behind a snapshot; None for any other player."""
    return int(player.removeprefix(_STEP)) if player.startswith(_STEP) else None


def rule_of(player: str) -> str | None:
    """The rule that a player follows, in words; None for any other player."""
    return player.removeprefix(_RULE).replace("-", " ") if player.startswith(_RULE) else None


def title(player: str) -> str:
    """What a report calls `player`."""
    step, rule = step_of(player), rule_of(player)
    if rule is not None:
        return f"A rule: {rule}"
    return _TITLES.get(player, player) if step is None else f"After {step} steps"
