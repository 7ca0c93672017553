"""Metrics to SLIME's log, W&B or TensorBoard, and episodes to shards."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from slime.utils.types import Sample

from slim_rl.core.episode import Episode
from slim_rl.rollout.shards import write_shard
from slim_rl.rollout.summary import describe
from slim_rl.slime.context import Context
from slim_rl.slime.observability import compute_rollout_step, logging_utils
from slim_rl.slime.progress import note_metrics
from slim_rl.slime.samples import PLAYED
from slim_rl.slime.samples import episodes as episodes_of

log = logging.getLogger(__name__)


def log_rollout(
    rollout_id: int, args: Any, samples: Sequence[Sample], rollout_extra_metrics: Any, rollout_time: float
) -> bool:
    """Log the rollout's metrics and write its episodes to a shard (`--custom-rollout-log-function-path`).

    `rollout/...` describes the episodes that are trained on, as SLIME's own metrics do; `rollout/all/...` all episodes
    that ended, dropped ones too: what filters keep says little about how well the policy plays.

    Returns False, so that SLIME's own log follows.
    """
    args.logged_rollout_id = rollout_id
    context, trained = Context.of(args), _played(samples)
    chosen = {id(episode) for episode in trained}
    for episode in context.judged:
        if id(episode) not in chosen:
            episode.dropped = episode.dropped or "surplus"
    everything = list({id(episode): episode for episode in (*context.judged, *trained)}.values())
    context.judged = []
    of_all = {f"all/{name}": value for name, value in describe(everything).items()}
    _log_episodes(args, rollout_id, rollout_id, "rollout", "rollouts", everything, {**describe(trained), **of_all})
    return False


def log_evaluation(rollout_id: int, args: Any, data: dict[str, dict[str, Any]], extra_metrics: Any) -> bool:
    """The same for an evaluation (`--custom-eval-rollout-log-function-path`). Its step is the number of updates before it,
    as on the local backend: SLIME gives it the number of the last rollout, and 0 also before the first.

    Failed episodes are removed from `data`, so that SLIME's own log, which follows, does not count them as 0.
    """
    args.logged_eval_rollout_id = rollout_id
    trained = hasattr(args, "logged_rollout_id")
    step = rollout_id + 1 if trained else 0
    for name, played in list(data.items()):
        ended = [i for i, s in enumerate(played["samples"]) if s.status != Sample.Status.FAILED]
        if failed := len(played["samples"]) - len(ended):
            log.warning("Evaluation %s: %d episodes failed and are left out", name, failed)
        if ended:
            data[name] = {key: [values[i] for i in ended] for key, values in played.items()}
        else:
            del data[name]  # SLIME's own log goes by the entries that are there
        episodes = _played(played["samples"])
        _log_episodes(args, rollout_id, step, f"eval/{name}", f"evaluations/{name}", episodes, describe(episodes))
    return False


def log_metrics(args: Any, rollout_id: int, prefix: str, metrics: Mapping[str, float]) -> None:
    """Log `metrics` under `prefix`, whose first part names the axis."""
    step = prefix.partition("/")[0] + "/step"
    named = {f"{prefix}/{name}": value for name, value in metrics.items()}
    log.info("Step %d: %s", rollout_id, named)
    logging_utils.log(args, {**named, step: compute_rollout_step(args, rollout_id)}, step_key=step)


def _played(samples: Sequence[Sample]) -> list[Episode]:
    return episodes_of(sample for sample in samples if PLAYED in sample.metadata)


def _log_episodes(
    args: Any,
    rollout_id: int,
    step: int,
    prefix: str,
    folder: str,
    episodes: Sequence[Episode],
    metrics: Mapping[str, float],
) -> None:
    if not episodes:
        return
    for episode in episodes:
        episode.step = step
    root = Context.of(args).folder
    if root:
        write_shard(root / folder / f"step-{step:05d}" / "00000.parquet", episodes)
        name = prefix.partition("/")[2]  # of the evaluation
        named = {f"{name}/{key}" if name else key: value for key, value in metrics.items()}
        note_metrics(root, rollout_id, step, named)
    log_metrics(args, step, prefix, metrics)
