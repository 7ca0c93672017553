"""The tiny model, its tokenizer, and learning by imitation."""

import asyncio
import copy

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from slim_rl.core.game import Demonstration
from slim_rl.core.message import heard
from slim_rl.runtime.team import Team
from slim_rl.training import memory, warmstart
from slim_rl.training.config import WarmstartConfig
from slim_rl.training.warmstart import encode_tree, hold_out, imitate, imitation_loss, right_closings, tiny_qwen

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
        spoken = [(shown.closings[i], STOP)] + ([] if last else [(shown.turns[i], 1 - STOP)])
        for text, first in spoken:
            said = renderer.turn(text)
            with torch.no_grad():
                logits = model(torch.tensor([path + said])).logits[0, len(path) - 1 : -1]
            losses = torch.nn.functional.cross_entropy(logits, torch.tensor(said), reduction="none")
            weight = torch.tensor([first] + [1.0] * (len(said) - 1))
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


def test_what_all_demonstrations_begin_with_is_computed_once_and_changes_no_gradient(model, trees, monkeypatch):
    computed, losses, gradients, trees = [], [], [], trees[:16]
    model.get_decoder().layers[0].register_forward_hook(
        lambda layer, args, out: computed.append(args[0][..., 0].numel())
    )
    for least in (1, 10**9):
        monkeypatch.setattr(warmstart, "MIN_SHARED_TOKENS", least)
        model.zero_grad()
        losses.append(imitation_loss(model, trees))
        losses[-1].backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    once, prompt, rest = computed.pop(), *computed
    assert prompt * (len(trees) - 1) == once - prompt - rest > 0
    assert torch.allclose(*losses)
    for mine, expected in zip(*gradients, strict=True):
        assert torch.allclose(mine, expected, atol=1e-6, rtol=1e-4)


def test_a_killed_warm_start_goes_on_with_the_same_weights(model, trees, tmp_path, monkeypatch):
    config = WarmstartConfig(demonstrations=6 * 4, batch=4, checkpoint_every=2)
    begun, resumed = copy.deepcopy(model), copy.deepcopy(model)

    def batch(step):
        return trees[4 * step : 4 * step + 4]

    asyncio.run(imitate(config, model, batch, tmp_path / "whole"))
    steps = []

    def killed(step):
        steps.append(step)
        if step == 3:
            raise KeyboardInterrupt
        return batch(step)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(imitate(config, begun, killed, tmp_path / "killed"))
    monkeypatch.setattr(
        warmstart, "imitation_loss", lambda m, b, real=imitation_loss: steps.append("again") or real(m, b)
    )
    asyncio.run(imitate(config, resumed, batch, tmp_path / "killed"))
    assert steps.count("again") == 4  # steps 2 to 5: one was done twice
    for one, other in zip(model.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_choice_to_close_is_weighted_up_to_where_a_closing_and_a_turn_differ(renderer):
    """A tokenizer that was not made for the game may begin both with the same tokens."""
    turn, closing = "[a] b c", "[a] d c"
    shown = Demonstration(["go", "on"], [turn], [closing, closing])
    tree = encode_tree(shown, renderer, STOP)
    said, closed = renderer.turn(turn), renderer.turn(closing)
    alike = next(n for n in range(len(said)) if said[n] != closed[n])
    assert alike > 1
    chosen = alike + 1
    expected = [0.7] * chosen + [1.0] * (len(said) - chosen)
    expected += 2 * ([0.3] * chosen + [1.0] * (len(closed) - chosen))
    assert tree.weights.tolist() == pytest.approx(expected)


# A checkpoint


@pytest.fixture(scope="module")
def some(demonstrations):
    """Demonstrations with three turns or more, and the same with another second closing."""
    long = [shown for shown in demonstrations if len(shown.turns) > 2][:2]
    return long, [shown._replace(closings=[shown.closings[0], "[message] no", *shown.closings[2:]]) for shown in long]


def begun(tokenizer):
    return tiny_qwen(tokenizer, max_context_tokens=512, seed=0, layers=1, hidden_size=64)


def imitating(config, tokenizer, renderer, some, folder):
    """A model that imitates the same two demonstrations again and again, and what was measured on both and on the others."""
    model = begun(tokenizer)
    held_out = [hold_out(one, renderer, STOP) for one in some[0] * 10]
    trees = [one.tree for one in held_out[:2]]
    return model, asyncio.run(imitate(config, model, lambda step: trees * 2, folder, held_out))


def test_a_checkpoint_imitates_until_its_closings_are_right(tokenizer, renderer, some, tmp_path):
    config = WarmstartConfig(
        demonstrations=4000, batch=4, learning_rate=0.01, warmup_steps=2, stop_at=0.9, measure_every=10
    )
    model, measured = imitating(config, tokenizer, renderer, some, tmp_path)
    assert measured[0]["step"] == 0 and measured[-1]["step"] < 400
    shares = [[value for name, value in row.items() if name.startswith("right_after_")] for row in measured]
    assert len(shares[0]) >= 3 and max(shares[0]) == 0 and all(min(before) < 0.9 for before in shares[:-1])
    assert min(shares[-1]) >= 0.9
    for shown, second in zip(some, (True, False), strict=True):
        found = right_closings(model, [hold_out(one, renderer, STOP) for one in shown])
        assert found[1] == [second] * 2 and found[0] == found[2] == [True, True]


def test_a_checkpoints_batch_in_parts_gives_the_same_gradient(tokenizer, renderer, trees, some, tmp_path, monkeypatch):
    different = sorted(trees, key=lambda tree: len(tree.ids))[:: len(trees) // 5]
    assert len({len(tree.ids) for tree in different}) > 3
    passes, gradients = [], []

    def counted(model, part):
        passes.append(len(part))
        return imitation_loss(model, part)

    def noted(parameters, limit):
        gradients.append([parameter.grad.clone() for parameter in parameters])

    monkeypatch.setattr(warmstart, "imitation_loss", counted)
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", noted)
    config = WarmstartConfig(demonstrations=len(different), batch=len(different))
    held_out = [hold_out(one, renderer, STOP) for one in some[0]]
    monkeypatch.setattr(memory, "MAX_TOKENS", 10**6)
    for gigabytes, least_length, folder in ((3, 0.0, "whole"), (3, 0.8, "apart"), (1e-6, 0.8, "parts")):
        monkeypatch.setattr(memory, "ACTIVATIONS_GIGABYTES", gigabytes)
        monkeypatch.setattr(warmstart, "_LEAST_LENGTH", least_length)
        asyncio.run(imitate(config, begun(tokenizer), lambda step: different, tmp_path / folder, held_out))
    assert passes[0] == len(different) and passes[-len(different) :] == [1] * len(different)
    little_padding = passes[1 : -len(different)]
    assert 1 < len(little_padding) < len(different) == sum(little_padding)
    for other in gradients[1:]:
        for one, another in zip(gradients[0], other, strict=True):
            assert torch.allclose(one, another, atol=1e-6, rtol=1e-4)


def test_processes_share_a_measurement(tokenizer, renderer, demonstrations):
    model, held_out = begun(tokenizer), [hold_out(shown, renderer, STOP) for shown in demonstrations[:40]]
    parts = [right_closings(model, Team(rank, 2).share(held_out)) for rank in (0, 1)]

    class Both(Team):
        async def gather(self, own):
            return parts

    whole = asyncio.run(warmstart._measure(model, held_out, 0, Team()))
    assert len(whole) > 2 and asyncio.run(warmstart._measure(model, held_out, 0, Both(1, 2))) == whole


def test_a_checkpoint_uses_all_demonstrations_where_it_does_not_reach_the_target(tokenizer, renderer, some, tmp_path):
    config = WarmstartConfig(demonstrations=8, batch=4, stop_at=1.0)
    _, measured = imitating(config, tokenizer, renderer, some, tmp_path)
    assert [row["step"] for row in measured] == [0, 2]


def test_a_killed_checkpoint_goes_on_with_the_same_weights_and_measurements(
    tokenizer, renderer, some, tmp_path, monkeypatch
):
    config = WarmstartConfig(demonstrations=20, batch=4, warmup_steps=0, checkpoint_every=2, measure_every=2)
    whole, expected = imitating(config, tokenizer, renderer, some, tmp_path / "whole")
    assert [row["step"] for row in expected] == [0, 2, 4, 5]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        losses = iter([imitation_loss] * 3)
        patch.setattr(warmstart, "imitation_loss", lambda m, trees: next(losses, stop)(m, trees))
        imitating(config, tokenizer, renderer, some, tmp_path / "killed")
    resumed, measured = imitating(config, tokenizer, renderer, some, tmp_path / "killed")
    assert measured == expected
    assert all(map(torch.equal, whole.parameters(), resumed.parameters()))


def stop(*_):
    raise KeyboardInterrupt
