"""What a model is worth in a game small enough to be solved exactly."""

from collections.abc import Mapping
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from slim_rl.core.game import Decision, Taskset
from slim_rl.core.message import heard
from slim_rl.engines.model import load_model
from slim_rl.players.config import ModelConfig
from slim_rl.players.renderer import Renderer, renderer_of


def solve(
    taskset: Taskset, checkpoints: Mapping[str, Path], config: ModelConfig, temperature: float
) -> dict[str, dict[str, float]]:
    """The exact worth of each checkpoint, by name: see `Taskset.solve`.

    `other` is the largest probability, over all decisions, that the model says something else than, word for word, one
    of the turns that it may take; the probabilities of these are scaled up to 1.
    """
    worth = {}
    for name, checkpoint in tqdm(checkpoints.items(), desc="exact solution", unit="model"):
        model, tokenizer = load_model(checkpoint)
        renderer = renderer_of(config, tokenizer)
        decided = [option_logprobs(model, renderer, d, temperature) for d in taskset.decisions()]
        shares = [torch.softmax(options, dim=0).tolist() for options in decided]
        other = 1 - min(float(options.exp().sum()) for options in decided)
        worth[name] = {**taskset.solve(shares), "other": max(other, 0.0)}
    return worth


@torch.inference_mode()
def option_logprobs(model: PreTrainedModel, renderer: Renderer, decision: Decision, temperature: float) -> torch.Tensor:
    """Log-probability that the model, sampled at `temperature`, says each option of the decision, (options,) float64."""
    ids: list[int] = []
    for i, observation in enumerate(decision.observations):
        ids += renderer.continuation(heard(observation)) if i else renderer.opening(heard(observation))
        if i < len(decision.turns):
            ids += renderer.turn(decision.turns[i])
    logprobs_of_options = []
    for option in decision.options:
        said = renderer.turn(option)
        logits = model(input_ids=torch.tensor([ids + said], device=model.device)).logits[0].double()
        logprobs = torch.log_softmax(logits[len(ids) - 1 : -1] / (temperature or 1e-6), dim=-1)
        chosen = logprobs.gather(1, torch.tensor(said, device=model.device)[:, None])
        logprobs_of_options.append(chosen.sum().cpu())
    return torch.stack(logprobs_of_options)
