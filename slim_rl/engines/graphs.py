"""Decoding steps as CUDA graphs. A step of one token a row is hundreds of small kernels, and launching them one by one takes
several times as long as they run."""

import math
import threading
from collections.abc import Callable
from typing import NamedTuple

import torch

Forward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Takes token ids and positions, both (rows, 1) int64, and the part of the buffer that the rows have; writes there, and
returns logits (rows, vocabulary)."""
_ROOM_STEP, _MOST_UNUSED = 256, 2
_RECORDING = threading.Lock()
"""torch records on one stream, and engines sample in threads of their own."""


class Graphs:
    """Records a model's decoding step, for 1, 2, 4, 8, ... rows, when it is first needed, and replays it.

    All steps use one buffer of keys and values. A larger one takes the place of one that is too small, and the recorded
    steps with it.

    Args:
        shape: of the buffer, (layers, 2, rows, heads, tokens, dimension); rows and tokens do not count.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device):
        layers, two, _, heads, _, dimension = shape
        self._buffer = torch.zeros(layers, two, 0, heads, 0, dimension, dtype=dtype, device=device)
        self._steps = dict[int, _Step]()

    def clear(self) -> None:
        """Free the buffer, and forget the recorded steps: weights may have moved."""
        self._steps.clear()
        layers, two, _, heads, _, dimension = self._buffer.shape
        self._buffer = self._buffer.new_zeros(layers, two, 0, heads, 0, dimension)

    def buffer(self, rows: int, room: int) -> torch.Tensor:
        """(layers, 2, rows, heads, room, dimension); what was in it is gone."""
        layers, two, most_rows, heads, most_room, dimension = self._buffer.shape
        if rows > most_rows or room >= most_room:
            own = _power(rows), _ROOM_STEP * (room // _ROOM_STEP + 1)  # the last place is for recording
            both = max(most_rows, own[0]), max(most_room, own[1])
            if math.prod(both) > _MOST_UNUSED * max(math.prod(own), most_rows * most_room):
                both = own  # many short rows and few long ones need no buffer for many long ones
            self.clear()  # frees the old one first
            self._buffer = self._buffer.new_zeros(layers, two, both[0], heads, both[1], dimension)
        return self._buffer[:, :, :rows, :, :room]

    def step(self, forward: Forward, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Feed a token to each of the first rows of the buffer.

        Args:
            forward: the same at every call until `clear`.
            tokens, positions: (rows,) int64.

        Returns:
            (rows, vocabulary) logits. The next step overwrites them.
        """
        count = len(tokens)
        rows = _power(count)
        if rows not in self._steps:
            with _RECORDING:
                self._steps[rows] = self._record(forward, rows)
        step = self._steps[rows]
        step.tokens[:count, 0].copy_(tokens)
        step.positions[:count, 0].copy_(positions)
        step.graph.replay()
        return step.logits[:count]

    def _record(self, forward: Forward, rows: int) -> "_Step":
        part, last = self._buffer[:, :, :rows], self._buffer.shape[4] - 1
        tokens = torch.zeros(rows, 1, dtype=torch.long, device=part.device)
        positions = torch.full_like(tokens, last)
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # libraries set themselves up, which cannot be recorded
            for _ in range(2):
                forward(tokens, positions, part)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            logits = forward(tokens, positions, part)
        return _Step(graph, tokens, positions, logits)


class _Step(NamedTuple):
    graph: torch.cuda.CUDAGraph
    tokens: torch.Tensor
    positions: torch.Tensor
    logits: torch.Tensor


def _power(rows: int) -> int:
    """The least power of 2 that is no less."""
    return 1 << (rows - 1).bit_length()
