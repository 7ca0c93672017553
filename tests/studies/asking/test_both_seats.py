"""A pair that was trained together: what its numbers say of its language."""

import numpy as np
import pandas as pd
import pytest

from slim_rl.studies.asking.selfplay import MEASURES, MODELS, PAIRINGS, SelfPlay, read_selfplay
from tests.studies.asking.made import AGENT, PARTNER, Policy, game_of, play, write


def made(own, first, second, base=0.6, games=200):
    """Episodes on the same boards, with these mean rewards of the trained model."""
    rng = np.random.default_rng(0)
    easy = rng.normal(0, 0.1, games)
    rewards = {"self-play": own, "held-out": first, "second-seat": second}

    def frame(reward):
        columns = {name: np.ones(games) for name in MEASURES}
        noise = rng.normal(0, 0.02, games)
        both = dict.fromkeys(("reward", "reward_second"), reward + easy + noise)
        return pd.DataFrame({**columns, "game_id": np.arange(games), **both})

    return SelfPlay({(p, m): frame(rewards[p] if m == "trained" else base) for p in PAIRINGS for m in MODELS})


@pytest.mark.parametrize(
    ("own", "first", "second", "said"),
    [
        (0.9, 0.7, 0.8, "and is better with itself"),
        (0.9, 0.95, 0.9, "not shown to be better"),
        (
            0.9,
            0.9,
            0.85,
            "better with itself than with a scripted partner in the second seat; in the first that is not shown",
        ),
        (
            0.9,
            0.85,
            0.95,
            "better with itself than with a scripted partner in the first seat; in the second that is not shown",
        ),
        (0.6, 0.9, 0.9, "not shown that the pair earns more"),
    ],
)
def test_a_language_of_its_own_must_pay_with_itself_alone(own, first, second, said):
    assert said in made(own, first, second).verdict


def test_gains_are_on_the_same_boards():
    gain = made(0.9, 0.7, 0.8).gains["self-play"]
    assert gain.low < 0.3 < gain.high and gain.high - gain.low < 0.02  # easy boards explain nothing


def test_with_a_price_the_model_is_measured_in_its_own_seat(tmp_path):
    """Each seat pays for its own questions."""
    rewards = {"self-play": {AGENT: 0.9, PARTNER: 0.8}, "held-out": {AGENT: 0.7, PARTNER: 0.5}}
    rewards["second-seat"] = {AGENT: 0.2, PARTNER: 0.6}
    for pairing, of_seats in rewards.items():
        for model in MODELS:
            episodes = play(game_of(), "policy", Policy(1), 2)
            for episode in episodes:
                episode.rewards = of_seats
            (tmp_path / pairing / model).mkdir(parents=True)
            write(tmp_path / pairing / model, episodes)
    found = read_selfplay(tmp_path)
    assert [found.mean(pairing, "trained", "reward").mean for pairing in PAIRINGS] == pytest.approx([0.9, 0.7, 0.6])
    assert found.own["held-out"].mean == pytest.approx(0.2) and found.own["second-seat"].mean == pytest.approx(0.2)
