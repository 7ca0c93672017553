"""A small game with tools, for tests: ask a tool for the secret word, then say it.

Parameters name it by its import path, `tests.echo`. `EchoEngine` plays it well.
"""

import asyncio
import json
from collections.abc import Iterator
from random import Random

from transformers import PreTrainedTokenizerFast

from slim_rl.core.errors import GameFailed
from slim_rl.core.game import Purpose, Task, Taskset, series_seed
from slim_rl.core.message import Message, Tool, ToolCall
from slim_rl.core.parameters import GameParameters
from slim_rl.core.tools import ToolGame
from slim_rl.engines.engine import Generation, Sampling
from slim_rl.training.tokenizer import small_tokenizer

SYSTEM, PROMPT = "You may use tools.", "What is the word?"
WORDS = ("apple", "river", "stone")
TOOLS = (
    Tool("look", "Tells the word.", {"type": "object", "properties": {}}),
    Tool("echo", "Repeats a text.", {"type": "object", "properties": {"text": {"type": "string"}}}),
)


class Parameters(GameParameters):
    call_seconds: float = 0.0
    """How long each call of a tool takes."""
    step_seconds: float = 60.0
    failure_rate: float = 0.0
    """Share of the calls in which the tool server breaks."""


class EchoGame(ToolGame):
    def __init__(self, task: Task, parameters: Parameters, random: Random):
        super().__init__(task.game_id, [Message("system", SYSTEM), Message("user", PROMPT)], parameters.max_turns)
        self._word, self._parameters, self._random = task.state["word"], parameters, random
        self._reward, self.step_seconds = 0.0, parameters.step_seconds
        self.closed = 0

    def tools(self, seat: str) -> tuple[Tool, ...]:
        return TOOLS

    async def call(self, call: ToolCall) -> str:
        await asyncio.sleep(self._parameters.call_seconds)
        if self._random.random() < self._parameters.failure_rate:
            raise GameFailed("BadGateway: the tool server is gone")
        return f"The word is {self._word}." if call.name == "look" else str(call.arguments.get("text"))

    async def answer(self, text: str) -> None:
        self._reward = float(text == self._word)

    def rewards(self) -> dict[str, float]:
        return {self.seats[0]: self._reward}

    async def close(self) -> None:
        self.closed += 1


class Echoes(Taskset):
    """The taskset. It names no study. Failures are drawn anew whenever a task is played."""

    seats = ("solver",)

    def __init__(self, parameters: Parameters, seed: int):
        super().__init__(parameters, seed)
        self._random = Random(seed)

    def tasks(self, purpose: Purpose, count: int) -> Iterator[Task]:
        random = Random(series_seed(self.seed, purpose))
        for number in range(count):
            yield Task(f"echo-{purpose}-{number}", PROMPT, {"word": random.choice(WORDS)})

    def load(self, task: Task) -> EchoGame:
        return EchoGame(task, self.parameters, self._random)


def taskset(parameters: Parameters, seed: int, variant: str) -> Echoes:
    return Echoes(parameters, seed)


def call(name: str, **arguments: object) -> str:
    """A tool call as the model writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


SPOKEN = (
    "river",
    call("look"),
    f"I look.\n{call('look')}\n{call('echo', text='<|im_end|></tool_response>')} And now?",
    call("search", for_="it"),
    "<tool_call>{not JSON</tool_call>",
    '<tool_call>{"arguments": {}}</tool_call>',
    f"<think>I should look: {call('look')}</think>{call('echo', text=1)}",
    f"{call('look')}<tool_call>{{",
    call("echo", text="river <tool_call> " * 60),
)
"""What a model may say: sensible, malformed, of unknown tools, with markers and thoughts, too much."""


def echo_tokenizer() -> PreTrainedTokenizerFast:
    """Words are tokens, everything else is spelled."""
    words = ("word", "tool", *WORDS, *(tool.name for tool in TOOLS))
    between_markers = call("look").removeprefix("<tool_call>").removesuffix("</tool_call>")
    told = [f"The word is {word}." for word in WORDS]
    return small_tokenizer([f"user\n{PROMPT}", f"system\n{SYSTEM}", between_markers, *told, *WORDS], words)


class EchoEngine:
    """Looks the word up and says it."""

    max_context_tokens = 10_000

    def __init__(self, tokenizer: PreTrainedTokenizerFast, looks: int = 1):
        self._tokenizer, self._looks = tokenizer, looks
        self.sessions: list[str] = []

    async def generate(self, input_ids: list[int], sampling: Sampling) -> Generation:
        read = self._tokenizer.decode(input_ids, skip_special_tokens=False)
        looks = read.count("<tool_response>")
        text = call("look") if looks < self._looks else read.rpartition("The word is ")[2].partition(".")[0]
        ids = [*self._tokenizer.encode(text, add_special_tokens=False), sampling.stop_token_ids[0]]
        return Generation(ids, [-0.5] * len(ids), "stop")

    def release(self, session: str) -> None:
        self.sessions.append(session)
