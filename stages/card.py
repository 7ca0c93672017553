"""The model card of a trained checkpoint, as the Hugging Face hub reads it."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData, try_to_load_from_cache

from slim_rl.analysis import page
from slim_rl.analysis.titles import title
from slim_rl.config import Config

TEMPLATE = Path(page.__file__).parent / "templates/model-card.md.j2"
PLAYERS = ("base", "trained")
RECIPE = {"seed", "games", "model", "warmstart", "train"}


def model_card(config: Config, metrics: Mapping[str, Mapping[str, Any]], commit: str, training_time: str = "") -> str:
    """Markdown with the metadata of the hub: base model and licence, data, game, recipe, evaluation, and what it does
    not show.

    Args:
        metrics: of each game's study, by the game's name.
        commit: of the code.
        training_time: sentences that say what the training took.
    """
    base = (config.train.backend == "tinker" and config.tinker_server.base_model) or config.model.base
    rewards = {
        game: [(player, *one) for player in PLAYERS for one in _rewards(found.get(player) or {})]
        for game, found in metrics.items()
    }
    results = [
        EvalResult(
            "reinforcement-learning",
            game,
            f"{game}{where}, held-out tasks",
            "reward",
            round(found["reward"], 4),
            dataset_config=where.removeprefix(", ") or None,
        )
        for game, rows in rewards.items()
        for player, where, found in rows
        if player == "trained"
    ]
    is_file = Path(base).exists() or base.endswith(".gguf")  # and no name of the hub
    name = f"{Path(base).name}-{'-'.join(metrics)}"
    licence = licence_of(base)
    data = ModelCardData(
        model_name=name,
        base_model=base if "/" in base and not is_file else None,
        license=licence,
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["grpo", "reinforcement-learning", "slim-rl", *metrics],
        eval_results=results or None,
    )
    set_here = config.model_dump(mode="json", include=RECIPE, exclude_defaults=True)
    card = ModelCard.from_template(
        data,
        template_path=str(TEMPLATE),
        name=name,
        base=Path(base).name if is_file else base,
        licence=licence,
        config=config,
        parameters=yaml.safe_dump(set_here, sort_keys=False, allow_unicode=True, default_flow_style=None),
        metrics=metrics,
        rewards=rewards,
        commit=commit,
        training_time=training_time,
    )
    return str(card).rstrip() + "\n"


def _rewards(found: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Mapping[str, float]]]:
    """Where a player earned what. A game with winners has a reward for each opponent and seat."""
    if "reward" in found:
        yield where, found
        return
    for name, inner in found.items():
        if isinstance(inner, Mapping):
            yield from _rewards(inner, f"{where}, {title(name).lower()}")


def licence_of(base: str) -> str | None:
    """The licence that a GGUF file or a checkpoint's own card names; None if this machine has neither any more, or
    cannot read it."""
    file = Path(base)
    if file.suffix == ".gguf":
        try:
            from gguf import GGUFReader  # an extra
        except ImportError:  # `.venv` was made anew
            return None
        named = GGUFReader(file).get_field("general.license") if file.is_file() else None
        return str(named.contents()) if named else None
    card = file / "README.md" if file.is_dir() else try_to_load_from_cache(base, "README.md") if "/" in base else None
    if not isinstance(card, str | Path) or not Path(card).is_file():
        return None
    try:
        return ModelCard.load(card, ignore_metadata_errors=True).data.license
    except (yaml.YAMLError, ValueError, TypeError):  # the front matter is no YAML, or no names with values
        return None
