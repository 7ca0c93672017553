"""What a report calls the players."""

_STEP = "step-"
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


def title(player: str) -> str:
    """What a report calls `player`."""
    step = step_of(player)
    return _TITLES.get(player, player) if step is None else f"After {step} steps"
