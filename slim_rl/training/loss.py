"""The policy-gradient loss on sampled tokens."""

from typing import Literal

import torch


def policy_loss(
    logprobs: torch.Tensor, old_logprobs: torch.Tensor, advantages: torch.Tensor, clip_low: float, clip_high: float
) -> torch.Tensor:
    """PPO's clipped surrogate for each token (Schulman et al. 2017, arXiv 1707.06347, equation 7).

    The upper clip may differ from the lower one (Yu et al. 2025, DAPO, arXiv 2503.14476, equation 10).

    Args:
        logprobs, old_logprobs, advantages: (tokens,) float; the old ones are the rollout's.

    Returns:
        (tokens,) float, to be minimised.
    """
    ratio = (logprobs - old_logprobs).exp()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return -torch.minimum(ratio * advantages, clipped * advantages)


def is_clipped(
    logprobs: torch.Tensor, old_logprobs: torch.Tensor, advantages: torch.Tensor, clip_low: float, clip_high: float
) -> torch.Tensor:
    """Whether the clip of `policy_loss` stops the gradient of a token, (tokens,) bool."""
    ratio = (logprobs - old_logprobs).exp()
    return ((advantages > 0) & (ratio > 1 + clip_high)) | ((advantages < 0) & (ratio < 1 - clip_low))


def kl_estimate(logprobs: torch.Tensor, reference: torch.Tensor, estimator: Literal["k2", "k3"]) -> torch.Tensor:
    """Estimates KL(policy || reference) from each token sampled from the policy, (tokens,) float.

    Schulman, "Approximating KL divergence" (joschu.net/blog/kl-approx.html): k2 has little variance, k3 is
    unbiased and never negative. As a loss they differ: the gradient of k2 is that of KL(policy || reference), the one of
    k3, which GRPO takes (equation 4), that of KL(reference || policy).
    """
    log_ratio = reference - logprobs
    return log_ratio**2 / 2 if estimator == "k2" else log_ratio.exp() - 1 - log_ratio


def token_weights(
    lengths: torch.Tensor, episodes: torch.Tensor, average_over: Literal["tokens", "episodes"]
) -> torch.Tensor:
    """The weight of each token of a sequence in the mean of a batch; over all tokens the weights sum to 1.

    With `tokens` all tokens have equal weight, so long episodes weigh more (DAPO, equation 8). With
    `episodes` all episodes have equal weight (GRPO, equation 3). The tokens of an episode with two trained
    seats are averaged over both sequences, as SLIME does for samples that share a `rollout_id`.

    Args:
        lengths: (sequences,) int64, tokens sampled in each.
        episodes: (sequences,) int64, the episode that each belongs to.

    Returns:
        (sequences,) float32.
    """
    if average_over == "tokens":
        return torch.full(lengths.shape, 1 / max(int(lengths.sum()), 1))
    numbers, index = torch.unique(episodes, return_inverse=True)
    totals = torch.zeros(len(numbers), dtype=torch.int64).index_add_(0, index, lengths)
    return 1 / (len(numbers) * totals[index].clamp(min=1).float())
