"""The functions that SLIME imports by path: one episode, filters, advantages, logs.

Checked against github THUDM/slime v0.3.1 (624b824): `slime/rollout/sglang_rollout.py`, `slime/ray/rollout.py`,
`slime/utils/types.py`. SLIME brings samples, engines, training and weight sync; games, players, `play()`,
filters, advantages and shards are those of the local backend.

A sample comes from a line of a games file by `--input-key prompt --label-key game_id --metadata-key
game_state`. Two attributes of SLIME's `args`, set by `--custom-config-path`, say the rest: `slim_rl_params`,
the file with our parameters, and `slim_rl_folder`, where episode shards go. `launch.py` writes all of it.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from slime.observability import logging_utils
from slime.observability.metric_utils import compute_rollout_step
from slime.rollout import sglang_rollout
from slime.rollout.filter_hub.base_types import DynamicFilterOutput
from slime.utils.types import Sample

from slim_rl.config import Config, load_config
from slim_rl.engines.engine import EngineFailed, Generation, Sampling
from slim_rl.engines.sglang import SGLangEngine, generation
from slim_rl.errors import UserError
from slim_rl.games import game_kind
from slim_rl.games.game import GameKind
from slim_rl.journal import append_line, read_lines
from slim_rl.players.chat_format import ChatFormat, qwen3_format
from slim_rl.rollout.episode import Episode, Turn
from slim_rl.rollout.filters import FILTERS, Group, first_objection
from slim_rl.rollout.store import write_shard
from slim_rl.rollout.summary import describe
from slim_rl.rollout.table import Job, Table
from slim_rl.seating import make_table, partner_service, policy_makers
from slim_rl.training.advantages import advantages

log = logging.getLogger(__name__)

EPISODE, SEAT, INTERRUPTIONS = "episode", "seat", "interruptions"
"""Keys of a sample's metadata: its `Episode`, the seat whose tokens it has, how often it was interrupted."""
BASELINES = "baselines.jsonl"
MAX_INTERRUPTIONS = 2
"""A dialogue interrupted more often starts over: its beginning was sampled by weights long gone."""
MAX_DROPPED_ROLLOUTS = 10
"""So many rollouts' worth of groups dropped in a row, or of episodes failed, end the training."""

_STATUS = {
    "completed": Sample.Status.COMPLETED,
    "truncated": Sample.Status.TRUNCATED,
    "failed": Sample.Status.FAILED,
    "aborted": Sample.Status.ABORTED,
}


async def generate(
    args: Any, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False
) -> Sample | list[Sample]:
    """Play one episode (`--custom-generate-function-path`).

    Each seat that the policy takes fills a sample; with more than one, the samples share a `rollout_id`. A
    sample that comes back from an interruption is played on from where it stopped. An episode that failed
    through somebody else's fault has a sample marked so; it is never an exception.

    Raises:
        UserError: episode after episode failed, so that nothing can come of it.
    """
    started = time.monotonic()
    if sample.tokens and _begun(sample) is None:  # it failed, and gets another chance
        vars(sample).update(vars(_blank(sample)))
    recorder = Recorder(args, sample, sampling_params, evaluation)
    if sample.label is None or not sample.metadata:
        episode = Episode("", "", status="failed", error="The sample has no game.")
    else:
        episode = await _table(args, recorder, sampling_params).play(_job(args, sample, evaluation))
    samples = recorder.finish(episode)
    samples[0].non_generation_time += time.monotonic() - started - recorder.seconds
    if episode.status == "failed":
        log.warning("Episode %s failed: %s", episode.episode_id, episode.error)
    if _failures.stuck(episode.status != "failed", _rollout_size(args)):
        raise UserError(f"{_failures.count} episodes failed in a row, the last one so: {episode.error}")
    # All of SLIME's groups must have one shape, also where one of two policies never had a turn.
    one = _config(getattr(args, "slim_rl_params", None)).players.count("policy") == 1
    return samples[0] if one or episode.status == "aborted" else samples


class Recorder:
    """The engine of one episode: fills a sample a seat with exactly what goes to SGLang and comes back."""

    def __init__(self, args: Any, sample: Sample, sampling_params: dict[str, Any], evaluation: bool):
        self.max_context_tokens = _max_context_tokens(args, evaluation)
        self.seconds = 0.0
        """Spent waiting for SGLang."""
        self._args = args
        self._sampling_params = sampling_params
        self._first = sample
        self._samples: dict[str, Sample] = {}

    async def generate(self, input_ids: Sequence[int], sampling: Sampling) -> Generation:
        sample = self._sample_of(str(sampling.session).rpartition("/")[2])
        if not sample.tokens:
            sample.tokens = list(input_ids)
        elif heard := list(input_ids[len(sample.tokens) :]):
            sample.append_response_tokens(self._args, tokens=heard, trainable=False, text=self._text(heard))
        if self._aborted():
            return Generation([], [], "abort")
        limit = self._sampling_params.get("max_new_tokens") or sampling.max_new_tokens
        session = sample.session_id or sampling.session  # SLIME names none in an evaluation
        sampling = replace(sampling, max_new_tokens=min(sampling.max_new_tokens, limit), session=session)
        started = time.monotonic()
        answer = await _engine(self._args).request(input_ids, sampling, self._sampling_params, self._aborted)
        self.seconds += time.monotonic() - started
        sampled = generation(answer)
        if sampled.finish_reason == "abort" and not self._aborted():
            raise EngineFailed("the engine ended the request by itself")
        sample.append_response_tokens(
            self._args,
            tokens=sampled.token_ids,
            log_probs=sampled.logprobs,
            meta_info=answer["meta_info"],
            text=answer.get("text"),
        )
        return sampled

    def release(self, session: str) -> None:
        """SGLang forgets by itself."""

    def finish(self, episode: Episode) -> list[Sample]:
        """The samples with what the episode came to."""
        samples = self._samples or {"": self._first}
        if len(samples) > 1 and episode.status == "aborted":
            # SLIME's buffer takes no lists of samples; a dialogue of two policies starts over.
            return [replace(_blank(self._first), status=Sample.Status.ABORTED)]
        if not self._first.tokens and episode.status in ("completed", "truncated"):
            # The game was over before the policy had a turn: a sample without a response, for SLIME wants one.
            self._first.tokens = [sglang_rollout.GenerateState(self._args).tokenizer.eos_token_id]
            self._first.loss_mask, self._first.rollout_log_probs = [], []
        for seat, sample in samples.items():
            sample.status = _STATUS[episode.status]
            sample.reward = None if episode.status == "aborted" else episode.rewards.get(seat, 0.0)
            sample.remove_sample = episode.status == "failed"
            sample.metadata |= {EPISODE: episode, SEAT: seat, "facts": episode.facts, "error": episode.error}
            sample.metadata[INTERRUPTIONS] = sample.metadata.get(INTERRUPTIONS, 0) + (
                episode.status == "aborted"
            )
        return list(samples.values())

    def _sample_of(self, seat: str) -> Sample:
        if seat not in self._samples:
            self._samples[seat] = _blank(self._first) if self._samples else self._first
            if len(self._samples) > 1:
                for sibling in self._samples.values():
                    sibling.rollout_id = self._first.index
        return self._samples[seat]

    def _aborted(self) -> bool:
        return sglang_rollout.GenerateState(self._args).aborted

    def _text(self, token_ids: list[int]) -> str:
        return sglang_rollout.GenerateState(self._args).tokenizer.decode(token_ids)


async def reward(args: Any, sample: Sample, **kwargs: Any) -> float:
    """What the sample's seat earned (`--custom-rm-path`), for those who want it apart; 0 without an episode."""
    episode = sample.metadata.get(EPISODE)
    return episode.rewards.get(sample.metadata[SEAT], 0.0) if episode else 0.0


def normalise_rewards(args: Any, samples: Sequence[Sample]) -> tuple[list[float], list[float]]:
    """Rewards and advantages as `train.advantage` has them (`--custom-reward-post-process-path`).

    Each seat is compared with the same seat of its game's other episodes. (SLIME by itself takes the whole
    batch as one group once the count of samples is not prompts times samples.) Failed episodes, and those in
    which the policy never had a turn, are compared with nobody and have no advantage. Moving baselines stand in
    `baselines.jsonl`, a line a rollout: a training that goes on from a checkpoint goes on with them.
    """
    rewards = [float(sample.reward or 0.0) for sample in samples]
    of = [(_episode(sample, i), sample.metadata.get(SEAT, "")) for i, sample in enumerate(samples)]
    ended = [
        i
        for i, (episode, seat) in enumerate(of)
        if samples[i].status != Sample.Status.FAILED and seat in episode.rewards
    ]
    played = [(samples[i].group_index or 0, *of[i]) for i in ended]
    train = _config(getattr(args, "slim_rl_params", None)).train
    baselines = _read_baselines(args) if train.advantage == "role" else {}
    values = [0.0] * len(samples)
    for i, value in zip(ended, advantages(train, played, baselines), strict=True):
        values[i] = value
    if train.advantage == "role":
        line = {"rollout": args.logged_rollout_id, "baselines": baselines}
        append_line(Path(args.slim_rl_folder, BASELINES), line)
    return rewards, values


def _read_baselines(args: Any) -> dict[str, float]:
    """As they were after the last rollout before this one."""
    lines = read_lines(Path(args.slim_rl_folder, BASELINES))
    return next(
        (line["baselines"] for line in reversed(list(lines)) if line["rollout"] < args.logged_rollout_id), {}
    )


def oldest_first(args: Any, rollout_id: int | None, buffer: list[list[Sample]], num_samples: int):
    """Interrupted groups to play on (`--buffer-filter-path`), the longest-waiting ones first.

    What was interrupted more than `MAX_INTERRUPTIONS` times starts over.
    """
    groups, buffer[:] = buffer[:num_samples], buffer[num_samples:]
    stale = MAX_INTERRUPTIONS + 1
    return [[_blank(s) if s.metadata.get(INTERRUPTIONS, 0) >= stale else s for s in g] for g in groups]


# Dynamic sampling filters (`--dynamic-sampling-filter-path`): those of the local backend, one by one, and
# `keep_group` for all that `train.filters` names.


def keep_group(args: Any, samples: Sequence[Sample], **kwargs: Any) -> DynamicFilterOutput:
    """Keep the group if none of `train.filters` objects.

    Raises:
        UserError: group after group was dropped, so that the rollout would never end.
    """
    config = _config(getattr(args, "slim_rl_params", None))
    objection = first_objection(_episodes(samples), config.train.filters)
    if _drops.stuck(objection is None, _rollout_size(args) // len(samples)):
        raise UserError(
            f"{_drops.count} groups of episodes in a row were dropped, the last one by the filter {objection}; "
            "nothing can be learnt from them. Check the base model or train.filters."
        )
    return DynamicFilterOutput(keep=objection is None, reason=objection)


def _filter(name: str) -> Callable[..., DynamicFilterOutput]:
    def check(args: Any, samples: Sequence[Sample], **kwargs: Any) -> DynamicFilterOutput:
        keep = FILTERS[name](_episodes(samples))
        return DynamicFilterOutput(keep=keep, reason=None if keep else name)

    return check


check_reward_nonzero_std = _filter("reward_varies")
check_min_reward = _filter("min_reward")
check_response_diversity = _filter("responses_differ")
check_reasonable_length = _filter("reasonable_length")
check_any_success = _filter("any_success")
check_quality_and_diversity = _filter("quality_and_diversity")
check_no_failed_episode = _filter("no_failed_episode")


# Logs


def log_rollout(
    rollout_id: int, args: Any, samples: Sequence[Sample], rollout_extra_metrics: Any, rollout_time: float
) -> bool:
    """Questions, reward and the game's other facts to W&B or TensorBoard, episodes to a shard
    (`--custom-rollout-log-function-path`); SLIME's own log follows."""
    args.logged_rollout_id = rollout_id
    _log(args, rollout_id, "rollout", "rollouts", _ended(samples))
    return False


def log_evaluation(rollout_id: int, args: Any, data: dict[str, dict[str, Any]], extra_metrics: Any) -> bool:
    """The same of an evaluation (`--custom-eval-rollout-log-function-path`).

    Failed episodes are taken out of `data`, so that SLIME's own log, which follows, does not count them as
    worth nothing.
    """
    args.logged_eval_rollout_id = rollout_id
    for name, played in data.items():
        kept = [i for i, s in enumerate(played["samples"]) if s.status != Sample.Status.FAILED]
        if failed := len(played["samples"]) - len(kept):
            log.warning("Evaluation %s: %d episodes failed and are left out", name, failed)
        if kept:
            data[name] = {key: [values[i] for i in kept] for key, values in played.items()}
        _log(args, rollout_id, f"eval/{name}", f"evaluations/{name}", _ended(played["samples"]))
    return False


def _log(args: Any, rollout_id: int, prefix: str, folder: str, episodes: list[Episode]) -> None:
    if not episodes:
        return
    for episode in episodes:
        episode.step = rollout_id
    write_shard(Path(args.slim_rl_folder, folder, f"step-{rollout_id:05d}", "00000.parquet"), episodes)
    step = prefix.partition("/")[0] + "/step"
    metrics = {f"{prefix}/{name}": value for name, value in describe(episodes).items()}
    logging_utils.log(args, {**metrics, step: compute_rollout_step(args, rollout_id)}, step_key=step)


def _ended(samples: Iterable[Sample]) -> list[Episode]:
    episodes = [sample.metadata[EPISODE] for sample in samples if EPISODE in sample.metadata]
    return list({episode.episode_id: episode for episode in episodes}.values())


# What the functions above share


class _Streak:
    """Counts what goes wrong one after the other, to tell a bad moment from what can never work."""

    count = 0

    def stuck(self, good: bool, a_rollout: int) -> bool:
        self.count = 0 if good else self.count + 1
        return self.count >= MAX_DROPPED_ROLLOUTS * max(a_rollout, 1)


_failures, _drops = _Streak(), _Streak()


def _rollout_size(args: Any) -> int:
    return getattr(args, "rollout_batch_size", 32) * getattr(args, "n_samples_per_prompt", 8)


@cache
def _config(path: str | None) -> Config:
    return Config() if path is None else load_config(Path(path))


@cache
def _kind(config: Config) -> GameKind:
    return game_kind(config)


@cache
def _chat_format(tokenizer: Any, thinking: bool) -> ChatFormat:
    return qwen3_format(tokenizer, thinking)


@cache
def _engine_at(url: str, retry_seconds: float, timeout_seconds: float) -> SGLangEngine:
    return SGLangEngine(url, 2**31, retry_seconds, timeout_seconds)


def _engine(args: Any) -> SGLangEngine:
    slime = _config(getattr(args, "slim_rl_params", None)).slime
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}"
    return _engine_at(url, slime.retry_seconds, slime.request_timeout_seconds)


def _max_context_tokens(args: Any, evaluation: bool) -> int:
    names = ["rollout_max_context_len"]
    if evaluation:
        names.insert(0, "eval_max_context_len")
    return next(filter(None, (getattr(args, name, None) for name in names)), 2**31)


def _table(args: Any, recorder: Recorder, sampling_params: dict[str, Any]) -> Table:
    config = _config(getattr(args, "slim_rl_params", None))
    tokenizer = sglang_rollout.GenerateState(args).tokenizer
    chat_format = _chat_format(tokenizer, config.model.thinking)
    folder = getattr(args, "slim_rl_folder", None)
    service = partner_service(config, folder and Path(folder))
    policies = policy_makers(
        config, {"policy": recorder}, chat_format, sampling_params.get("temperature", 1.0)
    )
    table = make_table(config, _kind(config), config.players, policies, service)
    return replace(table, seed=sampling_params.get("sampling_seed", table.seed))


def _job(args: Any, sample: Sample, evaluation: bool) -> Job:
    seating = _config(getattr(args, "slim_rl_params", None)).seated(sample.group_index or 0)
    line = {"prompt": sample.prompt, "game_state": sample.metadata, "game_id": sample.label}
    purpose = "evaluate" if evaluation else "train"
    return Job(f"{purpose}/{sample.label}/{sample.index}", line, seating, begun=_begun(sample))


def _begun(sample: Sample) -> Episode | None:
    """The episode to go on with. (SLIME may call a sample aborted whose episode failed before.)"""
    episode = sample.metadata.get(EPISODE)
    return episode if episode is not None and episode.status == "aborted" else None


def _blank(sample: Sample) -> Sample:
    """The sample as its data source made it."""
    played = (EPISODE, SEAT, INTERRUPTIONS, "facts", "error", "start_rollout_id")
    return Sample(
        group_index=sample.group_index,
        index=sample.index,
        prompt=sample.prompt,
        label=sample.label,
        metadata={key: value for key, value in sample.metadata.items() if key not in played},
        generate_function_path=sample.generate_function_path,
        custom_rm_path=sample.custom_rm_path,
        session_id=sample.session_id,
    )


def _episodes(samples: Sequence[Sample | list[Sample]]) -> Group:
    """The group's episodes."""
    flat = [s for sample in samples for s in (sample if isinstance(sample, list) else [sample])]
    episodes = [_episode(sample, number) for number, sample in enumerate(flat)]
    return list({episode.episode_id: episode for episode in episodes}.values())


def _episode(sample: Sample, number: int) -> Episode:
    """The sample's episode, also if other functions made the sample."""
    return sample.metadata.get(EPISODE) or Episode(
        str(number),
        "",
        status="failed" if sample.status == Sample.Status.FAILED else "completed",
        turns=[Turn("", "", sample.response)],
        rewards={sample.metadata.get(SEAT, ""): float(sample.reward or 0.0)},
    )
