"""Whether a slow environment holds up any dialogue but its own.

    python -m benchmarks.latency

256 dialogues at once, each with tool calls of 200 ms one after the other. If nothing else waited, all of them together
would take as long as one. The policy's turns are scripted, so no model is measured; everything else is as in training:
rendering, parsing, the game, and shards on disk.
"""

import asyncio
import gc
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from slim_rl.core.game import Purpose, Task
from slim_rl.core.message import Message, Tool, ToolCall
from slim_rl.core.parameters import GameParameters
from slim_rl.core.tools import ToolGame
from slim_rl.engines.engine import Generation, Sampling
from slim_rl.games import NamedGame
from slim_rl.players.renderer import renderer_for
from slim_rl.rollout.collect import collect
from slim_rl.rollout.seating import PolicyRules, Request, Seating
from slim_rl.runtime.cli import argument_parser
from slim_rl.training.tokenizer import small_tokenizer

DIALOGUES, SAMPLES, RUNS, DEPTHS, STEP_SECONDS = 256, 16, 3, (5, 10, 20), 0.2
CALL = '<tool_call>\n{"name": "read", "arguments": {}}\n</tool_call>'


class Parameters(GameParameters):
    latency_seconds: float = 0.0
    depth: int = 5


class Reading(ToolGame):
    """The tool gives a page of text, a different one to each dialogue; the last page ends the game."""

    def __init__(self, task: Task, parameters: Parameters):
        prompt = f"Read {task.game_id} to its end."
        super().__init__(task.game_id, [Message("user", prompt)], parameters.max_turns)
        self._parameters = parameters

    def tools(self, seat: str) -> Sequence[Tool]:
        return (Tool("read", "Reads the next page.", {"type": "object", "properties": {}}),)

    async def call(self, call: ToolCall) -> str:
        await asyncio.sleep(self._parameters.latency_seconds)
        page = self.calls["ok"] + 1
        self._over = page == self._parameters.depth
        return f"Page {page} of copy {random.getrandbits(32)}: " + "word " * 100

    async def answer(self, text: str) -> None: ...

    def rewards(self) -> dict[str, float]:
        return {self.seats[0]: 1.0}


class Readings:
    seats, study = Reading.seats, "accuracy"

    def __init__(self, parameters: Parameters):
        self._parameters = parameters

    def tasks(self, purpose: Purpose, count: int) -> Iterator[Task]:
        yield from (Task(f"reading-{number}", str(number)) for number in range(count))

    def load(self, task: Task) -> Reading:
        return Reading(task, self._parameters)


def taskset(parameters: Parameters, seed: int, variant: str) -> Readings:
    return Readings(parameters)


class Script:
    """Always the same turn, at once."""

    max_context_tokens = 1_000_000

    def __init__(self, turn: list[int]):
        self._turn = turn

    async def generate(self, input_ids: Sequence[int], sampling: Sampling) -> Generation:
        return Generation(self._turn, [-0.5] * len(self._turn), "stop")

    def release(self, session: str) -> None: ...


def play_all(game: NamedGame, tasks: Sequence[Task], tokenizer: PreTrainedTokenizerBase) -> None:
    """Play a dialogue of each task, all at once."""
    renderer = renderer_for(tokenizer, thinking=False)
    maker = PolicyRules(renderer, max_turn_tokens=100, temperature=1.0).maker(Script(renderer.turn(CALL)))
    seating = Seating({game.name: game}, {"policy": maker}, seed=0)
    requests = [Request(f"e/{n}", game.name, task, ("policy",)) for n, task in enumerate(tasks)]
    with tempfile.TemporaryDirectory() as folder:
        episodes = collect(requests, seating.play, Path(folder), len(tasks), shard_episodes=None)
    assert {(episode.status, *episode.rewards.values()) for episode in episodes} == {("completed", 1.0)}


def small_words() -> PreTrainedTokenizerBase:
    return small_tokenizer(["user\nRead to its end.", "word ", *CALL.splitlines()], ["word"])


def dialogues(game: NamedGame) -> list[Task]:
    """The task of each dialogue."""
    return [task for task in game.taskset.tasks("train", DIALOGUES // SAMPLES) for _ in range(SAMPLES)]


def main() -> None:
    argument_parser(__doc__).parse_args()
    for depth in DEPTHS:
        parameters = Parameters(depth=depth, latency_seconds=STEP_SECONDS)
        game = NamedGame("reading", parameters, Readings(parameters))
        found = []
        for _ in range(RUNS):
            gc.collect()
            gc.freeze()  # the one long collection that follows the imports would take 0.3 s of it
            started, cpu = time.perf_counter(), time.process_time()
            play_all(game, dialogues(game), small_words())
            found.append((time.perf_counter() - started, time.process_time() - cpu))
        seconds, cpu = map(statistics.median, zip(*found, strict=True))
        ideal = depth * STEP_SECONDS
        print(
            f"{DIALOGUES} dialogues, {depth} tool calls of {STEP_SECONDS * 1000:.0f} ms each: {seconds:.2f} s, "
            f"{seconds / ideal:.2f} x the {ideal:.1f} s of one dialogue; {cpu:.2f} s of a core",
            flush=True,
        )


if __name__ == "__main__":
    main()
