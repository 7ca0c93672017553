"""Between SLIME's samples and our episodes.

A sample's `metadata` has two keys of ours: `task`, which `folder.prepare` wrote, and `played`, the outcome.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from slime.utils.types import Sample

from slim_rl.core.episode import Episode
from slim_rl.core.game import Task
from slim_rl.core.parameters import GameParameters
from slim_rl.rollout.seating import Request

TASK, PLAYED = "task", "played"


class Played(NamedTuple):
    episode: Episode
    seat: str
    """The seat whose tokens the sample has."""


def request_of(sample: Sample, games: Mapping[str, GameParameters], purpose: str) -> Request:
    """The episode that the sample asks for, to be continued if it was interrupted."""
    task = sample.metadata[TASK]
    return Request(
        f"{purpose}/{sample.label}/{sample.index}",
        task["game"],
        Task(sample.label, sample.prompt, task["state"]),
        games[task["game"]].seating,
        begun=interrupted(sample),
    )


def interrupted(sample: Sample) -> Episode | None:
    """The interrupted episode to continue. (SLIME may set the status of a failed sample to aborted.)"""
    episode = sample.metadata[PLAYED].episode if PLAYED in sample.metadata else None
    return episode if episode is not None and episode.status == "aborted" else None


def blank(sample: Sample) -> Sample:
    """The sample as its data source made it."""
    return Sample(
        group_index=sample.group_index,
        index=sample.index,
        prompt=sample.prompt,
        label=sample.label,
        metadata={k: v for k, v in sample.metadata.items() if k not in (PLAYED, "start_rollout_id")},
        generate_function_path=sample.generate_function_path,
        custom_rm_path=sample.custom_rm_path,
        session_id=sample.session_id,
    )


def clear(sample: Sample) -> None:
    """Make the sample blank."""
    vars(sample).update(vars(blank(sample)))


def played(sample: Sample, number: int = 0) -> Played:
    """The sample's episode and seat. A sample of another generate function counts as failed."""
    return sample.metadata.get(PLAYED) or Played(Episode(f"foreign/{number}", "", status="failed"), "")


def flat(samples: Iterable[Sample | list[Sample]]) -> list[Sample]:
    """The samples of all seats."""
    return [one for sample in samples for one in (sample if isinstance(sample, list) else [sample])]


def episodes(samples: Iterable[Sample | list[Sample]]) -> list[Episode]:
    """The samples' episodes, each once."""
    every = [played(sample, number).episode for number, sample in enumerate(flat(samples))]
    return list({episode.episode_id: episode for episode in every}.values())
