"""Whether a slow environment holds up any dialogue but its own.

    python -m benchmarks.latency

256 dialogues at once, each with 5 tool calls of 200 ms one after the other. If nothing else waited, all of them together
would take 5 x 200 ms. The policy's turns are scripted, so no model is measured; everything else is as in training:
rendering, parsing, the game, and shards on disk.
"""

import asyncio
import gc
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

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

DIALOGUES, SAMPLES, DEPTH, STEP_SECONDS = 256, 16, 5, 0.2
CALL = '<tool_call>\n{"name": "read", "arguments": {}}\n</tool_call>'


class Reading(ToolGame):
    """The tool gives a page of text, a different one each time."""

    def tools(self, seat: str) -> Sequence[Tool]:
        return (Tool("read", "Reads the next page.", {"type": "object", "properties": {}}),)

    async def call(self, call: ToolCall) -> str:
        await asyncio.sleep(STEP_SECONDS)
        return f"{self.game_id}, page {self.calls['ok']}: " + "word " * 100

    async def answer(self, text: str) -> None: ...

    def rewards(self) -> dict[str, float]:
        return {self.seats[0]: 1.0}


class Readings:
    seats, study = Reading.seats, "accuracy"

    def tasks(self, purpose: Purpose, count: int) -> Iterator[Task]:
        yield from (Task(f"reading-{number}") for number in range(count))

    def load(self, task: Task) -> Reading:
        prompt = f"Read {task.game_id}, then answer."
        return Reading(task.game_id, [Message("user", prompt)], max_turns=DEPTH + 1)


class Script:
    """Reads `DEPTH` pages, then answers."""

    max_context_tokens = 100_000

    def __init__(self, call: list[int], answer: list[int], result_token: int):
        self._call, self._answer, self._result_token = call, answer, result_token

    async def generate(self, input_ids: Sequence[int], sampling: Sampling) -> Generation:
        ids = self._call if list(input_ids).count(self._result_token) < DEPTH else self._answer
        return Generation(ids, [-0.5] * len(ids), "stop")

    def release(self, session: str) -> None: ...


def main() -> None:
    argument_parser(__doc__).parse_args()
    tokenizer = small_tokenizer(["user\nRead, then answer.", "word ", *CALL.splitlines()], ["word"])
    renderer = renderer_for(tokenizer, thinking=False)
    engine = Script(renderer.turn(CALL), renderer.turn("Done."), tokenizer.convert_tokens_to_ids("<tool_response>"))
    maker = PolicyRules(renderer, max_turn_tokens=100, temperature=1.0).maker(engine)
    game = NamedGame("reading", GameParameters(), Readings())
    seating = Seating({"reading": game}, {"policy": maker}, seed=0)
    requests = [
        Request(f"e/{task.game_id}/{sample}", "reading", task, ("policy",))
        for task in game.taskset.tasks("train", DIALOGUES // SAMPLES)
        for sample in range(SAMPLES)
    ]
    gc.collect()
    gc.freeze()  # the one long collection that follows the imports would take 0.3 s of it
    with tempfile.TemporaryDirectory() as folder:
        started, cpu = time.perf_counter(), time.process_time()
        episodes = collect(requests, seating.play, Path(folder), DIALOGUES, shard_episodes=None)
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    assert {(len(episode.turns), episode.metrics["calls"]) for episode in episodes} == {(DEPTH + 1, DEPTH)}
    ideal = DEPTH * STEP_SECONDS
    print(
        f"{DIALOGUES} dialogues, {DEPTH} tool calls of {STEP_SECONDS * 1000:.0f} ms each: {seconds:.2f} s, "
        f"{seconds / ideal:.2f} x the {ideal:.1f} s of one dialogue; {cpu:.2f} s of a core"
    )


if __name__ == "__main__":
    main()
