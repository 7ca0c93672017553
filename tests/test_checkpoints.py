"""Checkpoints of other families, with random weights, through the stages up to the evaluation."""

import json
import re
from itertools import groupby
from pathlib import Path

import pytest
import yaml

from slim_rl.engines.model import load_model
from slim_rl.players.renderer import Renderer
from slim_rl.rollout.shards import read_episodes
from tests.checkpoints import FAMILIES, chat_checkpoint

GUIDE = (Path(__file__).parents[1] / "docs/write-a-game.md").read_text(encoding="utf-8")


def reward(episodes, tasks):
    """Something that differs between episodes of a model that has learnt nothing."""
    return [len(episode.turns[0].message.text) % 7 / 7 for episode in episodes]


def parts(trace):
    """What was read and what was sampled, in turn."""
    runs = groupby(zip(trace.loss_mask, trace.token_ids, strict=True), key=lambda pair: pair[0])
    return [[token for _, token in run] for _, run in runs]


@pytest.mark.slow
@pytest.mark.pipeline
@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_of_any_family_is_trained_and_evaluated(family, tmp_path, monkeypatch, run_stage):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "guess.py").write_text(re.findall(r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)[0])
    game = {"train_count": 2, "eval_count": 2, "reward_function": {"function": f"{__name__}:reward"}}
    parameters = {
        "cores": 1,
        "games": {"guess": game},
        "model": {
            "base": str(chat_checkpoint(tmp_path / "given", family)),
            "turn_tokens": 6,
            "system_prompt": "Guess!",
            "precision": "fp32",
        },
        "train": {"steps": 2, "games_per_step": 2, "samples_per_game": 4, "learning_rate": 0.001},
    }
    Path("params.yaml").write_text(yaml.safe_dump(parameters))
    for stage in ("games", "base_model", "train", "evaluate"):
        run_stage(stage)

    base, tokenizer = load_model("models/base")
    trained, same = load_model("models/trained")
    assert any((a != b).any() for a, b in zip(base.parameters(), trained.parameters(), strict=True))
    assert same.chat_template == tokenizer.chat_template and same.get_vocab() == tokenizer.get_vocab()
    assert json.loads(Path("reports/training/metrics.json").read_text())["logprob_gap"] < 1e-4

    renderer = Renderer(tokenizer, thinking=False, system_prompt="Guess!")
    rollouts = list(read_episodes(Path("data/rollouts")))
    assert len(rollouts) == 2 * 2 * 4
    for episode in rollouts:
        pieces = parts(episode.traces["solver"])
        assert "Guess!" in tokenizer.decode(pieces[0])
        read = [renderer.opening(episode.turns[0].observation)]
        for turn, said in zip(episode.turns[1:], pieces[1::2], strict=False):
            cut = said[-1] not in renderer.stop_token_ids
            read.append([renderer.stop_token_ids[0]] * cut + renderer.continuation(turn.observation))
        assert pieces[::2] == read
        assert [renderer.parse(said) for said in pieces[1::2]] == [turn.message for turn in episode.turns]
    for model in ("base", "trained"):
        assert len(list(read_episodes(Path(f"data/episodes/guess/held-out/{model}")))) == 2 * 4
