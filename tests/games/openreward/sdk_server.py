"""An environment written with `openreward`: python sdk_server.py PORT. Run by test_sdks.py in an environment of its own."""

import sys

from openreward.environments import Environment, Server, Split, TextBlock, ToolOutput, terminal, tool
from pydantic import BaseModel


class Guess(BaseModel):
    number: int


class Message(BaseModel):
    message: str


class Hidden(Environment):
    """A hidden number: hints for guesses, a reward for the answer."""

    @classmethod
    def list_splits(cls):
        return [Split(name="train", type="train"), Split(name="test", type="test")]

    @classmethod
    def list_tasks(cls, split):
        return [{"number": number, "split": split} for number in range(1, 6)]

    async def get_prompt(self):
        return [TextBlock(text="Which number from 1 to 5?")]

    @tool
    async def guess(self, given: Guess) -> ToolOutput:
        """Tells whether a guess is right."""
        if given.number > 100:
            raise RuntimeError("out of range")
        right = given.number == self.task_spec["number"]
        return ToolOutput(blocks=[TextBlock(text="right" if right else "wrong")], reward=0.25 if right else -0.5)

    @terminal
    @tool
    async def answer(self, given: Message) -> ToolOutput:
        """Ends the episode."""
        right = given.message == str(self.task_spec["number"])
        return ToolOutput(blocks=[TextBlock(text="")], reward=1.0 if right else 0.0, finished=True)


if __name__ == "__main__":
    Server([Hidden]).run(host="127.0.0.1", port=int(sys.argv[1]))
