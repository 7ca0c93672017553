"""Between SLIME's samples and our episodes.

A sample's `metadata` has two keys of ours: `task`, which `launch` wrote, and `played`, what came of it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from slime.utils.types import Sample

from slim_rl.core.episode import Episode, TokenTrace, Turn
from slim_rl.core.game import Task
from slim_rl.core.message import said
from slim_rl.core.parameters import GameParameters
from slim_rl.rollout.seating import Request

TASK, PLAYED = "task", "played"


@dataclass
class Played:
    episode: Episode
    seat: str
    """The seat whose tokens the sample has."""
    interruptions: int = 0


def request_of(sample: Sample, games: dict[str, GameParameters], purpose: str) -> Request:
    """The episode that the sample asks for, to be played on if it was interrupted."""
    task = sample.metadata[TASK]
    return Request(
        f"{purpose}/{sample.label}/{sample.index}",
        task["game"],
        Task(sample.label, sample.prompt, task["state"]),
        games[task["game"]].seated(task["place"]),
        begun=begun(sample),
    )


def begun(sample: Sample) -> Episode | None:
    """The interrupted episode to go on with. (SLIME may set the status of a failed sample to aborted.)"""
    played = sample.metadata.get(PLAYED)
    return played.episode if played is not None and played.episode.status == "aborted" else None


def interruptions(sample: Sample) -> int:
    return sample.metadata[PLAYED].interruptions if PLAYED in sample.metadata else 0


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


def played(sample: Sample, number: int) -> Played:
    """The sample's episode and seat, also if another function than ours made the sample."""
    if PLAYED in sample.metadata:
        return sample.metadata[PLAYED]
    prompt = [0] * (len(sample.tokens) - sample.response_length)
    mask = prompt + (sample.loss_mask or [1] * sample.response_length)
    episode = Episode(
        str(number),
        "",
        status="failed" if sample.status == Sample.Status.FAILED else "completed",
        turns=[Turn("", (), said(sample.response))],
        rewards={"": float(sample.reward or 0.0)},
        traces={"": TokenTrace(sample.tokens, mask, [0.0] * len(mask))},
    )
    return Played(episode, "")


def episodes(samples: Iterable[Sample | list[Sample]]) -> list[Episode]:
    """The samples' episodes, each once."""
    flat = [s for sample in samples for s in (sample if isinstance(sample, list) else [sample])]
    found = [played(sample, number).episode for number, sample in enumerate(flat)]
    return list({episode.episode_id: episode for episode in found}.values())
