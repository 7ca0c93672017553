"""Episodes that are being collected: kept as they end, found again after an interruption, published as a whole."""

import json
import shutil
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from slim_rl.core.episode import Episode
from slim_rl.rollout.shards import BILLS, episode_of, read_episodes, row_of, write_shard
from slim_rl.runtime.files import write_text
from slim_rl.runtime.journal import append_line, read_lines

_JOURNAL = ".journal.jsonl"
"""In a store's folder: a line for each episode that has ended and is in no shard yet. A line costs less than a file."""


class Store:
    """The episodes of a folder, and those that are added to it.

    A context manager: at its end what was added is in shards.

    Args:
        keep: `each` keeps an episode from the moment it is added. `whole` keeps all at the end, or none if an error
            ends the context: log-probs depend on their batch in the last digits, so only a repetition of the whole
            batch gives an interrupted run the numbers of an uninterrupted one.
        shard_episodes: with `each`, so many episodes are a shard.
    """

    def __init__(self, folder: Path, keep: Literal["each", "whole"] = "each", shard_episodes: int = 256):
        self.folder = folder
        self._each, self._shard_episodes = keep == "each", shard_episodes
        self._unwritten: list[Episode] = []

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or self._each:
            self.write()

    def recover(self) -> None:
        """Write the episodes in the journals of a killed process to a shard."""
        self._unwritten += _journaled(self.folder)
        self.write()

    def finished(self) -> dict[str, Episode]:
        """By id, the episodes below the folder that need not be played again."""
        episodes = chain(read_episodes(self.folder), _journaled(self.folder))
        return {episode.episode_id: episode for episode in episodes if episode.status != "failed"}

    def add(self, episode: Episode) -> None:
        self._unwritten.append(episode)
        if self._each:
            append_line(self.folder / _JOURNAL, row_of(episode))
            if len(self._unwritten) >= self._shard_episodes:
                self.write()

    def write(self) -> None:
        """Write what was added to the next shard. Its name is the next free number."""
        if not self._unwritten:
            return
        numbers = [int(path.stem) for path in self.folder.glob("*.parquet") if path.stem.isdecimal()]
        write_shard(self.folder / f"{max(numbers, default=-1) + 1:05d}.parquet", self._unwritten)
        self._unwritten.clear()
        for path in self.folder.rglob(_JOURNAL):
            path.unlink()

    def publish(self, folder: Path, bills: Mapping[str, Any]) -> None:
        """Replace `folder` by a copy without the journals, and with `BILLS` for what services cost."""
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.folder, folder, ignore=shutil.ignore_patterns(".*"))
        if bills:
            write_text(folder / BILLS, json.dumps(bills, indent=2, sort_keys=True) + "\n")


def _journaled(folder: Path) -> Iterator[Episode]:
    for path in sorted(folder.rglob(_JOURNAL)):
        yield from read_lines(path, episode_of)
