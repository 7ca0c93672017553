"""The games of programs through the hooks: what is sampled is run, graded and trained on."""

import pytest
from slime.utils.types import Sample

from slim_rl.engines.engine import Generation
from slim_rl.games import game_parameters, load_games
from slim_rl.training.tokenizer import small_tokenizer
from tests.slime.support import SGLangShaped, play, sample_of, slime

SAID = {
    "Write f": "def f(x):\n    return x\nprint(f(1))",
    "Write a program": "print(6 * 7)",
    "What does": "42",
}


class Saying:
    """Says what belongs to the beginning of its prompt."""

    max_context_tokens = 10_000

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer

    async def generate(self, input_ids, sampling):
        read = self._tokenizer.decode(input_ids)
        text = next(text for asked, text in SAID.items() if asked in read)
        ids = [*self._tokenizer.encode(text, add_special_tokens=False), sampling.stop_token_ids[0]]
        return Generation(ids, [-0.5] * len(ids), "stop")


@pytest.mark.parametrize(
    ("game", "seating", "rewards"),
    [("execution", ["policy"], [1.0]), ("prediction", ["policy", "policy"], [-1.0, 1.0])],
)
def test_programs_are_played_and_rewarded(game, seating, rewards):
    tokenizer = small_tokenizer({"assistant\n", "user\n", *SAID.values()})
    parameters = {game: {"seating": seating}}
    [named] = load_games({game: game_parameters(game, parameters[game])}, seed=0).values()
    task = next(named.taskset.tasks("train", 1))
    engine = SGLangShaped(tokenizer, 0, engine=Saying(tokenizer))
    with slime(tokenizer, engine, games={"matching": None, **parameters}, model={"turn_tokens": 64}) as args:
        args.rollout_max_context_len = 1000
        played = play(args, sample_of(task, game=game), max_new_tokens=64)
    samples = played if isinstance(played, list) else [played]
    assert [sample.reward for sample in samples] == rewards
    for sample, (asked, ids, _) in zip(samples, engine.asked, strict=True):
        assert sample.status == Sample.Status.COMPLETED and sample.tokens == asked + ids
        assert sample.loss_mask == [1] * len(ids)
