"""The model card of a trained checkpoint, as the Hugging Face hub reads it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from slim_rl.analysis import page
from slim_rl.config import Config

TEMPLATE = Path(page.__file__).parent / "templates/model-card.md.j2"
PLAYERS = ("base", "trained")


def model_card(config: Config, metrics: Mapping[str, Mapping[str, Any]], commit: str) -> str:
    """Markdown with the metadata of the hub: base model, data, game, recipe, evaluation, and what it does not show.

    Args:
        metrics: of each game's study, by the game's name.
        commit: of the code.
    """
    base = (config.train.backend == "tinker" and config.tinker_server.base_model) or config.model.base
    rewards = {
        game: {name: of_player for name in PLAYERS if "reward" in (of_player := found.get(name) or {})}
        for game, found in metrics.items()
    }
    results = [
        EvalResult(
            "reinforcement-learning", game, f"{game}, held-out tasks", "reward", round(players["trained"]["reward"], 4)
        )
        for game, players in rewards.items()
        if "trained" in players
    ]
    name = f"{Path(base).name}-{'-'.join(metrics)}"
    data = ModelCardData(
        model_name=name,
        base_model=base if "/" in base and not Path(base).exists() else None,
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["grpo", "reinforcement-learning", "slim-rl", *metrics],
        eval_results=results or None,
    )
    card = ModelCard.from_template(
        data,
        template_path=str(TEMPLATE),
        name=name,
        base=base,
        config=config,
        metrics=metrics,
        rewards=rewards,
        commit=commit,
    )
    return str(card).rstrip() + "\n"
