"""Decoding steps as CUDA graphs. A step of one token a row is hundreds of small kernels, and launching them one by one takes
several times as long as they run."""

from collections.abc import Callable
from typing import NamedTuple

import torch

_ROOM_STEP = 256


class Graphs:
    """Records a model's decoding step, for 1, 2, 4, 8, ... rows, when it is first needed, and replays it.

    All steps use one buffer of keys and values. A larger one takes the place of one that is too small, and the recorded
    steps with it.

    Args:
        shape: of the buffer, (layers, 2, rows, heads, tokens, dimension); rows and tokens do not count.
        forward: takes token ids and positions, both (rows, 1) int64, and the part of the buffer that the rows have; it
            writes there, and returns logits (rows, vocabulary).
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        forward: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
    ):
        layers, two, _, heads, _, dimension = shape
        self._buffer = torch.zeros(layers, two, 0, heads, 0, dimension, dtype=dtype, device=device)
        self._forward, self._steps = forward, dict[int, _Step]()

    def buffer(self, rows: int, room: int) -> torch.Tensor:
        """(layers, 2, rows, heads, room, dimension); what was in it is gone."""
        layers, two, most_rows, heads, most_room, dimension = self._buffer.shape
        if rows > most_rows or room >= most_room:
            most_rows = max(most_rows, _power(rows))
            most_room = max(most_room, _ROOM_STEP * (room // _ROOM_STEP + 1))  # the last place is for recording
            self._steps.clear()
            self._buffer = self._buffer.new_zeros(0)  # frees the old one first
            self._buffer = self._buffer.new_zeros(layers, two, most_rows, heads, most_room, dimension)
        return self._buffer[:, :, :rows, :, :room]

    def step(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Feed a token to each of the first rows of the buffer.

        Args:
            tokens, positions: (rows,) int64.

        Returns:
            (rows, vocabulary) logits. The next step overwrites them.
        """
        count = len(tokens)
        rows = _power(count)
        if rows not in self._steps:
            self._steps[rows] = self._record(rows)
        step = self._steps[rows]
        step.tokens[:count, 0].copy_(tokens)
        step.positions[:count, 0].copy_(positions)
        step.graph.replay()
        return step.logits[:count]

    def _record(self, rows: int) -> "_Step":
        part, last = self._buffer[:, :, :rows], self._buffer.shape[4] - 1
        tokens = torch.zeros(rows, 1, dtype=torch.long, device=part.device)
        positions = torch.full_like(tokens, last)
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # libraries set themselves up, which cannot be recorded
            for _ in range(2):
                self._forward(tokens, positions, part)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            logits = self._forward(tokens, positions, part)
        return _Step(graph, tokens, positions, logits)


class _Step(NamedTuple):
    graph: torch.cuda.CUDAGraph
    tokens: torch.Tensor
    positions: torch.Tensor
    logits: torch.Tensor


def _power(rows: int) -> int:
    """The least power of 2 that is no less."""
    return 1 << (rows - 1).bit_length()
