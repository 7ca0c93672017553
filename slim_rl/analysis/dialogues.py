"""A sample of episodes to be looked at in a page: messages with their roles, tool calls and results."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup

from slim_rl.analysis.titles import title
from slim_rl.core.episode import Episode, Turn
from slim_rl.rollout.shards import read_some

TASKS, STEPS, PER_STEP = 60, 20, 6
"""Held-out tasks that are shown, steps of training, and episodes of each step."""
MAX_BYTES = 1_200_000
"""All dialogues together; those at the end that do not fit are left out."""


class Shown(NamedTuple):
    """One episode that is shown."""

    player: str
    """Who it is about: "base", "trained", "humans", or "policy" for an episode of training."""
    shard: Path
    episode_id: str
    reward: float
    label: str
    """What its line in the list says after the reward."""
    caption: str
    """What stands above its dialogue."""
    number: float = 0
    """What the page can filter by, besides the reward."""


def choose(
    base: pd.DataFrame,
    trained: pd.DataFrame,
    training: pd.DataFrame,
    people: pd.DataFrame | None = None,
    first: str | None = None,
) -> list[tuple[str, Any]]:
    """Episodes by fixed rules: both models on a typical task, then on tasks from the greatest loss to the greatest gain;
    people's games; and episodes of training from the worst to the best of a step.

    Args:
        base: this and the others have a row an episode: `episode_id`, `game_id`, `step`, `reward` and more.
        first: the typical task; by default that with the median gain.

    Returns:
        Of each episode the player, as in `Shown`, and its row.
    """
    models = {
        name: frame.drop_duplicates("game_id").set_index("game_id", drop=False)
        for name, frame in (("base", base), ("trained", trained))
    }
    gains = (models["trained"]["reward"] - models["base"]["reward"]).dropna().rename_axis("task").reset_index()
    chosen: list[tuple[str, Any]] = []
    gains = gains.sort_values(["reward", "task"])
    typical = [first] if first else gains["task"].iloc[len(gains) // 2 :][:1]
    for task in dict.fromkeys([*typical, *_spread(gains, TASKS)["task"]]):
        chosen += [(name, next(frame.loc[[task]].itertuples(index=False))) for name, frame in models.items()]
    if people is not None:
        chosen += [("humans", row) for row in _ranked(people, PER_STEP * 4)]
    steps = np.unique(training["step"]) if len(training) else np.array([], int)
    for step in steps[_places(len(steps), STEPS)]:
        chosen += [("policy", row) for row in _ranked(training[training["step"] == step], PER_STEP)]
    return chosen


def _ranked(episodes: pd.DataFrame, count: int) -> Iterator[Any]:
    ordered = episodes.dropna(subset="reward").sort_values(["reward", "episode_id"])
    return _spread(ordered, count).itertuples(index=False)


def _spread(ranked: pd.DataFrame, count: int) -> pd.DataFrame:
    """`count` rows from the first to the last, evenly."""
    return ranked.iloc[_places(len(ranked), count)]


def _places(length: int, count: int) -> np.ndarray:
    return np.unique(np.linspace(0, length - 1, min(count, length)).round().astype(int))


def heard(turn: Turn) -> list[list[str]]:
    """All that a seat read before its turn: role and text of each message."""
    return [[message.role, message.text] for message in turn.observation]


def to_json(
    entries: Sequence[Shown],
    titles: Callable[[str], str] = title,
    heard: Callable[[Turn], list[list[str]]] = heard,
    extra: Callable[[Episode], Any] | None = None,
    shared: Mapping[str, Any] | None = None,
) -> Markup:
    """What the page's browser reads.

    Args:
        titles: what the players are called.
        heard: what is shown of what a seat read; the role `error` marks what the game found wrong.
        extra: JSON of an episode for a study's own script; see `browser.js`.
        shared: JSON for that script, of all episodes.
    """
    episodes, used = [], 0
    played = _episodes(entries)
    for one in entries:
        row = _row(one, played[one.episode_id], titles, heard, extra)
        used += len(json.dumps(row))
        if used > MAX_BYTES:
            break
        episodes.append(row)
    names = {player: titles(player) for player in dict.fromkeys(one.player for one in entries)}
    whole = json.dumps(
        {"titles": names, "shared": shared, "episodes": episodes}, separators=(",", ":"), ensure_ascii=False
    )
    return Markup(whole.replace("<", "\\u003c"))  # so that no text can end the script element it stands in


def of_models(base: pd.DataFrame, trained: pd.DataFrame, training: pd.DataFrame, label: Callable[[Any], str]) -> Markup:
    """`to_json` of the episodes that `choose` takes; `label` says what their lines say of a row."""
    chosen = choose(base, trained, training)
    return to_json(
        [Shown(who, Path(row.shard), row.episode_id, row.reward, label(row), f"{label(row)}.") for who, row in chosen]
    )


def _episodes(entries: Sequence[Shown]) -> dict[str, Episode]:
    """By id; every shard is read once."""
    wanted: dict[Path, set[str]] = {}
    for one in entries:
        wanted.setdefault(Path(one.shard), set()).add(one.episode_id)
    return {e.episode_id: e for path, ids in wanted.items() for e in read_some(path, ids)}


def _row(
    one: Shown,
    episode: Episode,
    titles: Callable[[str], str],
    heard: Callable[[Turn], list[list[str]]],
    extra: Callable[[Episode], Any] | None,
) -> dict[str, Any]:
    seats = list(dict.fromkeys([*episode.seating, *(turn.seat for turn in episode.turns)]))
    own = [seat for seat in seats if episode.seating.get(seat) == one.player]
    return {
        "id": episode.episode_id,
        "player": one.player,
        "game": episode.game_id,
        "step": episode.step,
        "reward": round(float(one.reward), 4) if np.isfinite(one.reward) else None,
        "count": float(one.number),
        "label": one.label,
        "caption": f"{episode.status}: {one.caption}",
        "seats": [f"{seat}: {titles(episode.seating[seat])}" if seat in episode.seating else seat for seat in seats],
        "own": seats.index(own[0]) if own else 0,
        "turns": [
            [
                seats.index(turn.seat),
                heard(turn),
                turn.message.text,
                [[call.name, call.status, call.raw or json.dumps(call.arguments)] for call in turn.message.tool_calls],
            ]
            for turn in episode.turns
        ],
        "extra": extra(episode) if extra else None,
    }
