"""Advantage estimators and a reward as a user would write them, named by import path in tests."""


def alternating(played, config, state):
    """Moves a model with random weights, which earns nothing."""
    return [i % 3 - 1.0 for i in range(len(played))]


def later_tokens(played, config, state):
    """A value for each token, which depends on the steps before."""
    state["steps"] = state.get("steps", 0) + 1
    state["seen"] = [*state.get("seen", ()), len(played)]
    return [
        [(i % 3 - 1.0) * (t + state["steps"]) for t in range(sum(p.episode.traces[p.seat].loss_mask))]
        for i, p in enumerate(played)
    ]


def exploding(played, config, state):
    """At a large rate, finite advantages in the third step with which no gradient is."""
    state["steps"] = state.get("steps", 0) + 1
    return [1e300 if config.learning_rate > 1 and state["steps"] == 3 else i % 3 - 1.0 for i in range(len(played))]


def bets(episodes, tasks):
    """A bandit: 1 for a policy whose first words are a bet."""
    first = [next((turn.text for turn in e.turns if e.seating[turn.seat] == "policy"), "") for e in episodes]
    return [float("bet" in text) for text in first]
