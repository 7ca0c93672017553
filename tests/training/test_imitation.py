"""The tiny model, its tokenizer, and learning by imitation."""

import asyncio
import copy

import pytest
import torch
from transformers import AutoTokenizer

from slim_rl.core.errors import UserError
from slim_rl.core.game import Demonstration
from slim_rl.core.message import heard
from slim_rl.runtime.team import Team
from slim_rl.training.config import WarmstartConfig
from slim_rl.training.demonstrations import encode_tree, hold_out
from slim_rl.training.imitation import backward, imitate, imitation_loss, right_closings
from slim_rl.training.tiny import tiny_qwen
from slim_rl.training.weights import Weights
from tests.settings import counting
from tests.training.short import same_weights
from tests.training.test_grpo import assert_close

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


def test_what_all_demonstrations_begin_with_is_computed_once_and_changes_no_gradient(model, trees):
    losses, gradients, trees = [], [], trees[:16]
    computed = counting(model.get_decoder().layers[0])
    for least in (1, 10**9):
        model.zero_grad()
        losses.append(imitation_loss(model, trees, shared_tokens=least))
        losses[-1].backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    once, prompt, rest = computed.pop(), *computed
    assert prompt * (len(trees) - 1) == once - prompt - rest > 0
    assert torch.allclose(*losses)
    assert_close(*gradients)


def killed_at(number, batch):
    """`batch`, but the call with `number` is interrupted; and the numbers of all calls."""
    steps = []

    def batches(step):
        steps.append(step)
        if len(steps) == number:
            raise KeyboardInterrupt
        return batch(step)

    return batches, steps


def test_a_killed_warm_start_goes_on_with_the_same_weights(model, trees, tmp_path):
    config = WarmstartConfig(demonstrations=6 * 4, batch=4)
    whole, begun, resumed = (copy.deepcopy(model) for _ in range(3))
    batches, steps = killed_at(4, lambda step: trees[4 * step : 4 * step + 4])

    def imitated(model, folder):
        asyncio.run(imitate(config, Weights(model), batches, tmp_path / folder, checkpoint_steps=2))

    with pytest.raises(KeyboardInterrupt):
        imitated(begun, "killed")
    imitated(resumed, "killed")
    imitated(whole, "whole")
    assert steps == [0, 1, 2, 3, 2, 3, 4, 5, *range(6)]  # one step was done twice
    assert same_weights(whole, resumed)


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


def imitating(config, tokenizer, renderer, some, folder, interrupted_at=None):
    """A model that imitates the same two demonstrations again and again, and what was measured on both and on the others."""
    model = begun(tokenizer)
    held_out = [hold_out(one, renderer, STOP) for one in some[0] * 10]
    trees = [one.tree for one in held_out[:2]]
    batches, _ = killed_at(interrupted_at, lambda step: trees * 2)
    return model, asyncio.run(imitate(config, Weights(model), batches, folder, held_out, checkpoint_steps=2))


@pytest.mark.slow
def test_a_checkpoint_imitates_until_its_closings_are_right(tokenizer, renderer, some, tmp_path):
    config = WarmstartConfig(demonstrations=4000, batch=4, learning_rate=0.01, warmup_steps=2, stop_at=0.9)
    model, measured = imitating(config, tokenizer, renderer, some, tmp_path)
    assert measured[0]["step"] == 0 and measured[-1]["step"] < 400
    shares = [[value for name, value in row.items() if name.startswith("right_after_")] for row in measured]
    assert len(shares[0]) >= 3 and max(shares[0]) == 0 and all(min(before) < 0.9 for before in shares[:-1])
    assert min(shares[-1]) >= 0.9
    for shown, second in zip(some, (True, False), strict=True):
        found = right_closings(model, [hold_out(one, renderer, STOP) for one in shown])
        assert found[1] == [second] * 2 and found[0] == found[2] == [True, True]


def test_a_batch_in_parts_gives_the_same_gradient(tokenizer, trees):
    different = sorted(trees, key=lambda tree: len(tree.ids))[:: len(trees) // 5]
    assert len({len(tree.ids) for tree in different}) > 3
    model = begun(tokenizer)
    passes, counts, gradients = [], [], []
    model.lm_head.register_forward_hook(lambda *_: passes.append(1))
    for max_tokens, least_length in ((10**6, 0.0), (10**6, 0.8), (1, 0.8)):
        passes.clear()
        model.zero_grad()
        asyncio.run(backward(Weights(model), different, max_tokens, least_length, Team()))
        counts.append(len(passes))
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    assert counts[0] == 1 < counts[1] < counts[2] == len(different)
    for other in gradients[1:]:
        assert_close(gradients[0], other)


def test_a_step_too_large_for_the_memory_is_told_in_a_sentence(model, trees):
    model.lm_head.register_forward_hook(lambda *_: torch.empty(10**15))
    with pytest.raises(UserError, match=r"Memory ran out in a step of the warm start.*smaller model"):
        asyncio.run(backward(Weights(model), trees[:1], 10**6, 0.0, Team()))


def test_a_killed_checkpoint_goes_on_with_the_same_weights_and_measurements(tokenizer, renderer, some, tmp_path):
    config = WarmstartConfig(demonstrations=48, batch=4, warmup_steps=0)
    whole, expected = imitating(config, tokenizer, renderer, some, tmp_path / "whole")
    assert [row["step"] for row in expected] == [0, 2, 4, 6, 8, 10, 12]
    with pytest.raises(KeyboardInterrupt):
        imitating(config, tokenizer, renderer, some, tmp_path / "killed", interrupted_at=4)
    resumed, measured = imitating(config, tokenizer, renderer, some, tmp_path / "killed")
    assert measured == expected
    assert same_weights(whole, resumed)
