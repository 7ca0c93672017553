"""A sample of episodes to be looked at in a page: messages with their roles, tool calls and results."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

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


def heard(turn: Turn) -> list[list[str]]:
    """All that a seat read before its turn: role and text of each message."""
    return [[message.role, message.text] for message in turn.observation]


def sample(
    base: pd.DataFrame,
    trained: pd.DataFrame,
    training: pd.DataFrame,
    label: Callable[[Any], str],
    *,
    people: pd.DataFrame | None = None,
    first: str | None = None,
    titles: Callable[[str], str] = title,
    heard: Callable[[Turn], list[list[str]]] = heard,
    caption: Callable[[Any], str] | None = None,
    count: str = "",
    extra: Callable[[Episode, Any], Any] | None = None,
    shared: Mapping[str, Any] | None = None,
) -> Markup:
    """What the page's browser reads: JSON of episodes that are chosen by fixed rules.

    Both models on a typical task, then on tasks from the greatest loss to the greatest gain; people's games; and episodes
    of training from the worst to the best of a step.

    Args:
        base: this and the other tables have a row an episode: `episode_id`, `game_id`, `step`, `reward`, `shard` and more.
        label: what the list says of an episode, from its row, after the reward.
        first: the typical task; by default that with the median gain.
        titles: what the players are called.
        heard: what is shown of what a seat read; the role `error` marks what the game found wrong.
        caption: what stands above a dialogue; by default the label.
        count: a column that the page can filter by, besides the reward.
        extra: JSON of an episode and its row for a study's own script; see `browser.js`.
        shared: JSON for that script, of all episodes.
    """

    def shown(player: str, row: Any, episode: Episode) -> dict[str, Any]:
        seats = list(dict.fromkeys([*episode.seating, *(turn.seat for turn in episode.turns)]))
        own = [seat for seat in seats if episode.seating.get(seat) == player]
        return {
            "id": episode.episode_id,
            "player": player,
            "game": episode.game_id,
            "step": episode.step,
            "reward": round(float(row.reward), 4) if np.isfinite(row.reward) else None,
            "count": float(getattr(row, count)) if count else 0.0,
            "label": label(row),
            "caption": f"{episode.status}: {caption(row) if caption else f'{label(row)}.'}",
            "seats": [
                f"{seat}: {titles(episode.seating[seat])}" if seat in episode.seating else seat for seat in seats
            ],
            "own": seats.index(own[0]) if own else 0,
            "turns": [[seats.index(turn.seat), heard(turn), turn.message.text, _calls(turn)] for turn in episode.turns],
            "extra": extra(episode, row) if extra else None,
        }

    chosen = _chosen(base, trained, training, people, first)
    ids: dict[str, set[str]] = {}
    for _, row in chosen:
        ids.setdefault(row.shard, set()).add(row.episode_id)
    played = {e.episode_id: e for shard, wanted in ids.items() for e in read_some(Path(shard), wanted)}
    episodes, used = [], 0
    for player, row in chosen:
        episodes.append(shown(player, row, played[row.episode_id]))
        used += len(json.dumps(episodes[-1]))
        if used > MAX_BYTES:
            episodes.pop()
            break
    names = {player: titles(player) for player in dict.fromkeys(player for player, _ in chosen)}
    whole = {"titles": names, "shared": shared, "episodes": episodes}
    text = json.dumps(whole, separators=(",", ":"), ensure_ascii=False)
    return Markup(text.replace("<", "\\u003c"))  # so that no text can end the script element it stands in


def _calls(turn: Turn) -> list[list[str]]:
    """Name, status and text of each tool call."""
    return [[call.name, call.status, call.raw or json.dumps(call.arguments)] for call in turn.message.tool_calls]


def _chosen(
    base: pd.DataFrame, trained: pd.DataFrame, training: pd.DataFrame, people: pd.DataFrame | None, first: str | None
) -> list[tuple[str, Any]]:
    """Of each episode the player that it is about ("base", "trained", "humans", or "policy" in training), and its row."""
    models = {
        name: frame.drop_duplicates("game_id").set_index("game_id", drop=False)
        for name, frame in (("base", base), ("trained", trained))
    }
    gains = (models["trained"]["reward"] - models["base"]["reward"]).dropna().rename_axis("task").reset_index()
    gains = gains.sort_values(["reward", "task"])
    typical = [first] if first else gains["task"].iloc[len(gains) // 2 :][:1]
    chosen: list[tuple[str, Any]] = []
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
