"""The tiny model, its tokenizer, and learning by imitation."""

import copy

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from slim_rl.core.message import heard
from slim_rl.training import warmstart
from slim_rl.training.config import WarmstartConfig
from slim_rl.training.warmstart import encode_tree, imitate, imitation_loss

STOP = 0.3


@pytest.fixture
def trees(demonstrations, renderer):
    return [encode_tree(shown, renderer, STOP) for shown in demonstrations]


def test_any_text_has_tokens_and_comes_back(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    for text in ("[message] What is Ava Li's score for BLEU?", "Zoë said: 57 ÷ 3 = «19»\n\t…", "", "100 0099"):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == text
        assert loaded.encode(text, add_special_tokens=False) == ids


def test_a_tree_is_read_as_its_dialogues_are_one_by_one(model, trees, demonstrations, renderer):
    """Each branch of a tree gets the loss it has as a dialogue of its own."""
    shown, tree = next((shown, tree) for shown, tree in zip(demonstrations, trees, strict=True) if len(shown.turns) > 1)
    total, weights = 0.0, 0.0
    path: list[int] = []
    for i, observation in enumerate(shown.observations):
        path += renderer.continuation(heard(observation)) if i else renderer.opening(heard(observation))
        last = i == len(shown.turns)
        spoken = [(shown.closings[i], STOP, 1.0)]
        spoken += [] if last else [(shown.turns[i], 1 - STOP, 0.1)]  # what it says by choice weighs little
        for text, first, others in spoken:
            said = renderer.turn(text)
            with torch.no_grad():
                logits = model(torch.tensor([path + said])).logits[0, len(path) - 1 : -1]
            losses = torch.nn.functional.cross_entropy(logits, torch.tensor(said), reduction="none")
            weight = torch.tensor([first] + [others] * (len(said) - 1))
            total, weights = total + float((losses * weight).sum()), weights + float(weight.sum())
        if not last:
            path += renderer.turn(shown.turns[i])
    assert float(imitation_loss(model, [tree]).detach()) == pytest.approx(total / weights, abs=1e-4)


def test_a_demonstrator_says_how_likely_it_stops_and_a_cut_path_says_nothing_of_its_end(demonstrations, renderer):
    shown = next(shown for shown in demonstrations if len(shown.turns) == 2)
    opening = {first: renderer.turn(text)[0] for first, text in (("ask", shown.turns[0]), ("stop", shown.closings[0]))}
    for stopping, stops in (((0.2, 0.7, 0.4), [0.2, 0.7, 0.0]), ((0.2, 0.7, 1.0), [0.2, 0.7, 1.0])):
        tree = encode_tree(shown._replace(stopping=stopping), renderer, STOP)
        decided = {at: weight for at, token, weight in zip(tree.predictors, tree.targets, tree.weights, strict=True)
                   if token == opening["stop"]}  # fmt: skip
        assert [decided[at] for at in sorted(decided)] == pytest.approx(stops)
        asked = [w for token, w in zip(tree.targets, tree.weights, strict=True) if token == opening["ask"]]
        assert asked == pytest.approx([0.8, 0.3])


def test_padding_changes_nothing(model, trees):
    short, long = sorted(trees[:8], key=lambda tree: len(tree.ids))[::7]
    weights = [tree.weights.sum() for tree in (short, long)]
    alone = [float(imitation_loss(model, [tree]).detach()) for tree in (short, long)]
    together = float(imitation_loss(model, [short, long]).detach())
    assert together == pytest.approx(float(np.average(alone, weights=weights)), abs=1e-4)


def test_imitation_learns(model, trees, tmp_path):
    before = float(imitation_loss(model, trees[:8]).detach())
    config = WarmstartConfig(demonstrations=24 * 8, warmup_steps=4)
    imitate(config, model, lambda step: trees[:8], tmp_path)
    assert float(imitation_loss(model, trees[:8]).detach()) < before / 4


def test_a_killed_warm_start_goes_on_with_the_same_weights(model, trees, tmp_path, monkeypatch):
    config = WarmstartConfig(demonstrations=6 * 4, batch=4, checkpoint_every=2)
    begun, resumed = copy.deepcopy(model), copy.deepcopy(model)

    def batch(step):
        return trees[4 * step : 4 * step + 4]

    imitate(config, model, batch, tmp_path / "whole")
    steps = []

    def killed(step):
        steps.append(step)
        if step == 3:
            raise KeyboardInterrupt
        return batch(step)

    with pytest.raises(KeyboardInterrupt):
        imitate(config, begun, killed, tmp_path / "killed")
    monkeypatch.setattr(
        warmstart, "imitation_loss", lambda m, b, real=imitation_loss: steps.append("again") or real(m, b)
    )
    imitate(config, resumed, batch, tmp_path / "killed")
    assert steps.count("again") == 4  # steps 2 to 5: one was done twice
    for one, other in zip(model.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)
