"""The study of calls: its verdict can say yes and no, and its arms take the choice away."""

import asyncio
import copy
import json
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from slim_rl.core.episode import Episode, Turn
from slim_rl.core.message import heard, said
from slim_rl.engines.engine import Sampling
from slim_rl.engines.local import LocalEngine
from slim_rl.games import game_parameters, load_games
from slim_rl.players.renderer import Renderer
from slim_rl.rollout.seating import PolicyRules, Request, Seating, under
from slim_rl.studies.calls.plan import forced
from slim_rl.training.config import TrainConfig
from slim_rl.training.tiny import tiny_qwen
from slim_rl.training.tokenizer import chat_corpus, small_tokenizer
from slim_rl.training.update import TrainedSequence, update
from slim_rl.training.weights import Weights
from tests.studies.runs import report_on, write

PLAYERS = {  # calls and reward of each episode; what the arms earn
    "learns": {"base": (0.1, 0.1), "trained": (1.0, 1.0), "guesses": (0, 0.0), "forbidden": 0.0},
    "gains otherwise": {"base": (0.1, 0.1), "trained": (1.0, 1.0), "guesses": (0, 0.0), "forbidden": 0.9},
    "calls for nothing": {"base": (0.1, 0.5), "trained": (2.0, 0.5), "guesses": (0, 0.0), "forbidden": 0.5},
    "uses answers better": {
        "base": (1.0, 0.5),
        "trained": (2.0, 0.9),
        "guesses": (0, 0.0),
        "forbidden": 0.3,
        "made": 0.5,
    },
    "control": {"base": (0.7, 0.6), "trained": (0.05, 1.0), "guesses": (0, 0.0), "forbidden": 1.0},
    "few": {"base": (0.1, 0.1), "trained": (1.0, 1.0), "guesses": (0, 0.0), "forbidden": 0.0},
}


def episodes(player, calls, reward, tasks, series="held-out", step=0):
    """`reward` is the share of the tasks that earn 1."""
    for task in range(tasks):
        right = float((task * 0.618034) % 1 < reward)
        yield Episode(
            f"{series}/{player}/{step}/{task}", f"t{task}", "calculator", {"solver": player}, series, step=step,
            turns=[Turn("solver", heard("What is 1 + 1?"), said("2"))], rewards={"solver": right},
            metrics={"turn_count": 1.0, "calls": float((task * 0.414214) % 1 < calls % 1 or calls >= 1) * max(calls, 1)},
        )  # fmt: skip


@pytest.fixture(params=PLAYERS)
def run(request, tmp_path):
    given, tasks = PLAYERS[request.param], 60 if request.param == "few" else 150
    data = tmp_path / "data/episodes/calculator"
    for player in ("base", "trained", "guesses"):
        write(data / "held-out" / player, episodes(player, *given[player], tasks))
    for model in ("base", "trained"):
        made = given.get("made", 0.9) if model == "base" else 0.9
        for arm, reward in (("forbidden", given["forbidden"]), ("forced-1", made)):
            series = f"intervention/{model}-{arm}"
            write(data / series, episodes(model, 0, reward, tasks, "intervention"))
    write(tmp_path / "data/rollouts", episodes("policy", 0.5, 0.5, 8, "train"))
    reports = report_on(tmp_path, {"calculator": {}})
    metrics = json.loads((reports / "metrics.json").read_text())
    return SimpleNamespace(name=request.param, metrics=metrics, html=(reports / "report.html").read_text())


def test_the_verdict(run):
    outcome = {
        "learns": "supported", "gains otherwise": "gains without calling", "control": "gains without calling",
        "uses answers better": "gains without calling",
        "calls for nothing": "calls more without gain", "few": "too little data",
    }  # fmt: skip
    assert run.metrics["outcome"] == outcome[run.name] and run.metrics["verdict"] in run.html
    trained = run.metrics["trained"]
    assert trained["reward_at_price_0.1"] == pytest.approx(trained["reward"] - 0.1 * trained["calls"])
    arms = [trained["reward_forbidden"], trained["reward_forced-1"]]
    assert arms == pytest.approx([PLAYERS[run.name]["forbidden"], 0.9], abs=0.06)


@pytest.fixture(scope="module")
def policy():
    game = load_games({"calculator": game_parameters("calculator", {})}, 0)["calculator"]
    shown = [game.taskset.demonstrate(task, "solver") for task in game.taskset.tasks("demonstrations", 64)]
    tokenizer = small_tokenizer(chat_corpus(shown))
    model = tiny_qwen(tokenizer, 512, 0, layers=1, hidden_size=32)
    rules = PolicyRules(Renderer(tokenizer, thinking=False), 24, 1.0)
    return SimpleNamespace(game=game, engine=LocalEngine(model), rules=rules, tokenizer=tokenizer)


def test_a_forbidden_token_is_never_drawn_and_the_other_rows_draw_as_before(policy):
    ids = policy.tokenizer.encode("What is 3 * 4?", add_special_tokens=False)

    async def drawn(forbidden):
        asked = [Sampling(40, seed=0, forbidden_token_ids=forbidden), Sampling(40, seed=1)]
        return await asyncio.gather(*(policy.engine.generate(ids, sampling) for sampling in asked))

    (first, other), every = asyncio.run(drawn(())), range(0, len(policy.tokenizer), 2)
    odd, same = asyncio.run(drawn(tuple(every)))
    assert any(token % 2 == 0 for token in first.token_ids) and all(token % 2 for token in odd.token_ids)
    assert same == other
    logits = policy.engine.model(torch.tensor([ids])).logits[0, -1].detach()
    assert odd.logprobs[0] == pytest.approx(float(torch.log_softmax(logits, -1)[odd.token_ids[0]]), abs=1e-4)


def test_a_model_that_may_not_call_is_trained_with_the_log_probs_that_it_was_sampled_with(policy):
    maker = under(partial(forced, 0), policy.rules.maker(policy.engine))
    seating = Seating({"calculator": policy.game}, {"policy": maker}, 0)
    tasks = policy.game.taskset.tasks("train", 4)
    requests = [Request(f"e{n}", "calculator", task, ("policy",)) for n, task in enumerate(tasks)]
    traces = [asyncio.run(seating.play(request)).traces["solver"] for request in requests]
    trained = [TrainedSequence(trace, 1.0, n) for n, trace in enumerate(traces)]
    metrics = asyncio.run(update(TrainConfig(), Weights(copy.deepcopy(policy.engine.model)), [], trained))
    assert metrics["logprob_gap"] < 1e-4


@pytest.mark.parametrize(("arm", "calls"), [("forbidden", 0), ("forced-1", 1)])
def test_an_arm_takes_the_choice_away(policy, arm, calls):
    maker = under(partial(forced, calls), policy.rules.maker(policy.engine))
    seating = Seating({"calculator": policy.game}, {"trained": maker}, 0)
    for number, task in enumerate(policy.game.taskset.tasks("evaluate", 6)):
        request = Request(f"e{number}", "calculator", task, ("trained",), series="intervention", arm=arm)
        episode = asyncio.run(seating.play(request))
        assert episode.metrics["calls"] == calls and episode.metrics["turn_count"] == calls + 1
        if calls:
            first, second = episode.turns
            assert first.message.tool_calls[0].arguments == {"expression": task.state["expression"]}
            assert second.observation[0].role == "tool"
            trace = episode.traces["solver"]
            begin = trace.token_ids.index(policy.rules.renderer.call_token_ids[0], len(trace.token_ids) // 2)
            assert trace.loss_mask[begin] == 0
