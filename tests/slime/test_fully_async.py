"""`slime.mode: fully_async`: rollouts from episodes that go on through updates of the weights."""

import asyncio
import itertools
import json
import pickle
import threading
from collections import defaultdict
from contextlib import contextmanager

import pytest
from slime.utils.http_utils import init_http_client
from slime.utils.misc import load_function
from slime.utils.types import Sample

from slim_rl.core.errors import UserError
from slim_rl.engines.engine import Generation
from slim_rl.rollout.shards import read_episodes
from slim_rl.slime.context import Context
from tests.slime.support import QWEN, SGLangShaped, answering, data_source, end_episodes, slime_args

GROUPS, SIZE = 4, 4


class Pausing(SGLangShaped):
    """Ends the requests under way as aborted when the weights change, as SGLang's `/pause_generation` does."""

    paused, weights = False, 0

    async def generate(self, input_ids, sampling):
        while self.paused:
            await asyncio.sleep(0.005)
        began = self.weights
        answer = await super().generate(input_ids, sampling)
        self.asked.pop()  # nothing else ran since it was added
        await asyncio.sleep(self.rng.random() / 20)
        if self.weights != began:
            cut = int(self.rng.integers(len(answer.token_ids)))
            answer = Generation(answer.token_ids[:cut], answer.logprobs[:cut], "abort")
        self.asked.append((list(input_ids), answer.token_ids, answer.logprobs))
        return answer

    @contextmanager
    def updated(self):
        """New weights, again and again."""
        ended = threading.Event()

        def update():
            while not ended.wait(0.1):
                self.paused, self.weights = True, self.weights + 1
                ended.wait(0.03)
                self.paused = False

        updating = threading.Thread(target=update)
        updating.start()
        yield
        ended.set()
        updating.join()


@pytest.fixture
def run(tokenizer, tmp_path):
    """A function that gives SLIME's arguments for an engine behind its router."""
    tokenizer.save_pretrained(tmp_path / "base")
    (tmp_path / "base/config.json").write_text(json.dumps(QWEN))

    def begin(engine, **changes):
        slime = {"mode": "fully_async", "rollout_gpus": 1, "evaluate_every": 1}
        changes = {"train": {"games_per_step": GROUPS, "samples_per_game": SIZE}, "slime": slime, **changes}
        _, args = slime_args(tmp_path / "base", tmp_path / "run", (), answering(engine), **changes)
        args.sglang_model_routers = None
        init_http_client(args)
        return args

    yield begin
    end_episodes()


def rollouts(args):
    """One after the other, as SLIME's rollout manager has them played."""
    play, source = load_function(args.rollout_function_path), data_source(args)
    return (play(args, number, source) for number in itertools.count())


def test_ten_rollouts_with_new_weights_between_them(run, tokenizer, tmp_path):
    engine = Pausing(tokenizer, 0, failing=0.005)
    args, aborted = run(engine), 0
    args.use_wandb = args.use_tensorboard = False
    log = load_function(args.custom_rollout_log_function_path)
    samples = []
    with engine.updated():
        for number, output in enumerate(itertools.islice(rollouts(args), 10)):
            assert [len(group) for group in output.samples] == [SIZE] * GROUPS
            of_rollout = list(itertools.chain.from_iterable(output.samples))
            log(number, args, of_rollout, output.metrics, 1.0)
            samples += of_rollout
        evaluation = load_function(args.rollout_function_path)(args, 9, None, evaluation=True)
    played = evaluation.data["held_out"]["samples"]
    assert len({sample.label for sample in played}) == len(played) == 32
    answers = defaultdict(list)
    for asked, ids, logprobs in engine.asked:
        answers[tuple(asked)].append((ids, logprobs))
    for sample in samples:
        assert sample.status in (Sample.Status.COMPLETED, Sample.Status.TRUNCATED) and not sample.remove_sample
        aborted += check_tokens(sample, answers)
    assert aborted > 10, "no turn was cut by new weights"
    episodes = list(read_episodes(tmp_path / "run/rollouts"))
    assert len({episode.episode_id for episode in episodes}) == len(episodes)
    assert sum(not episode.dropped for episode in episodes) == 10 * GROUPS * SIZE


def check_tokens(sample, answers):
    """All sampled tokens are answers to what stands before them; returns how many turns are of more than one answer."""
    prompt, cut = len(sample.tokens) - sample.response_length, 0
    mask, logprobs = [0] * prompt + sample.loss_mask, [0.0] * prompt + sample.rollout_log_probs
    trace = sample.metadata["played"].episode.traces["player-1"]
    assert (sample.tokens, mask, logprobs) == (trace.token_ids, trace.loss_mask, trace.logprobs)
    place = 0
    while place < len(mask):
        if not mask[place]:
            place += 1
            continue
        parts = 0
        while place < len(mask) and mask[place]:
            ids, _ = next(
                (ids, said)
                for ids, said in answers[tuple(sample.tokens[:place])]
                if ids and sample.tokens[place : place + len(ids)] == ids and logprobs[place : place + len(ids)] == said
            )
            place, parts = place + len(ids), parts + 1
        cut += parts > 1
    return cut


def test_groups_in_play_are_saved_with_the_data_source_and_played_again(run, tokenizer):
    train = {"games_per_step": GROUPS, "samples_per_game": SIZE, "filters": ["no_failed_episode"]}
    source = data_source(args := run(SGLangShaped(tokenizer, 0), train=train))
    if not hasattr(source, "register_consumer"):
        pytest.skip("SLIME saves them from 0.4 on")
    play = load_function(args.rollout_function_path)
    returned = {group[0].group_index for number in range(2) for group in play(args, number, source).samples}
    players = Context.of(args).players
    assert not players.pause()  # as SLIME's manager does before it has the source save itself, which pauses, too
    saved = pickle.loads(pickle.dumps(source.state_dict()))
    assert players.pause()
    players.resume()
    left = set(range(saved["sample_group_index"])) - returned
    assert len(left) >= GROUPS
    again = data_source(args)
    again.load_state_dict(saved)
    Context.of(args).players = None
    end_episodes()
    groups = [group for number in (2, 3) for group in play(args, number, again).samples]
    played = [group[0].group_index for group in groups]
    going_on = {group[0].group_index for group in again.state_dict()["consumers"]["slim_rl"]["groups"]}
    assert left <= {*played, *going_on} and not returned & {*played} and len({*played}) == len(played)


def test_what_ends_the_training_ends_it(run, tokenizer):
    """SLIME's own worker logs what an episode raises, and its rollout waits for ever."""
    engine = SGLangShaped(tokenizer, 0, failing=1.0)
    with pytest.raises(UserError, match="gone"):
        next(rollouts(run(engine)))
