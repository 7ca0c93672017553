"""Parameters of small runs, and games of any kind with a small language for each."""

from functools import cache
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerFast

from slim_rl.config import Config
from slim_rl.core.game import Task
from slim_rl.games import NamedGame, load_games
from slim_rl.players.renderer import Renderer
from slim_rl.training.tokenizer import chat_corpus, small_tokenizer

Parameters = dict[str, Any]


def miniature(**changes: Any) -> Parameters:
    """`params.yaml` of the default game's whole pipeline in a minute or two, as a dict.

    `changes` are merged into it, section by section: `miniature(train={"steps": 2})`. None removes a
    section's entry.
    """
    matching = dict(
        size=3, selection="stakes", seating=["policy", "scripted"], train_count=16, eval_count=8, max_turns=20,
    )  # fmt: skip
    asking = dict(
        references=["own-view", "bayes", "optimal"], human_references=["own-view"], transplant_games=4,
        transfer_games=2,
    )  # fmt: skip
    parameters = {
        "seed": 0,
        "cores": 1,
        "games": {"matching": matching},
        "model": {"base": "tiny", "layers": 1, "hidden_size": 32, "context_tokens": 512, "turn_tokens": 32},
        "warmstart": {"demonstrations": 160, "batch": 8},
        "train": {"steps": 4, "games_per_step": 2, "samples_per_game": 2, "filters": []},
        "studies": {"asking": asking},
    }
    return merged(parameters, changes)


def tiny(game: str, **changes: Any) -> Parameters:
    """`params.yaml` of a pipeline for a game with winners that takes seconds, as a dict: self-play.

    `changes` are merged into it as in `miniature`.
    """
    played = dict(seating=["policy", "policy"], train_count=16, eval_count=6, format="parquet")
    parameters = {
        "cores": 1,
        "games": {game: played},
        "model": {"layers": 1, "hidden_size": 32, "initializer_range": 0.1},
        "warmstart": {"demonstrations": 320, "batch": 8, "warmup_steps": 5},
        "train": {"steps": 2, "games_per_step": 2, "samples_per_game": 2, "filters": []},
        "studies": {"matches": {"opponents": ["random"], "snapshot_games": 2}},
    }
    return merged(parameters, changes)


def merged(parameters: Parameters, changes: Parameters) -> Parameters:
    """`parameters` with `changes`, mappings merged into each other; None removes an entry."""
    result = {**parameters}
    for name, value in changes.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict):
            result[name] = merged(result.get(name) or {}, value)
        else:
            result[name] = value
    return result


class Setting(NamedTuple):
    """One game, ready to be played with a model."""

    config: Config
    game: NamedGame
    tasks: list[Task]
    tokenizer: PreTrainedTokenizerFast
    renderer: Renderer


@cache
def setting(name: str, seating: tuple[str, ...] = ("policy", "policy")) -> Setting:
    """The game `name` with a tokenizer made for it. Do not change what it returns: all tests share it."""
    config = Config.model_validate(
        {
            "games": {name: {"seating": seating, "max_turns": 8}},
            "model": {"turn_tokens": 32, "context_tokens": 1500},
        }
    )
    game = load_games(config.games, config.seed)[name]
    tasks = list(game.taskset.tasks("train", 8))
    shown = [game.taskset.demonstrate(task, seat) for task in tasks for seat in game.taskset.seats]
    tokenizer = small_tokenizer(chat_corpus(shown), game.taskset.words)
    return Setting(config, game, tasks, tokenizer, Renderer(tokenizer, thinking=False))


def counting(layer):
    """The numbers of tokens that `layer` is given from now on."""
    computed = []
    layer.register_forward_hook(lambda layer, args, out: computed.append(args[0][..., 0].numel()))
    return computed
