"""A policy behind SGLang's HTTP interface that asks about cells that it does not see, from none to as many as it may, and then
proposes what its own numbers are best for. How much it asks, its board says. For tokenizers in Qwen's format."""

import re
import sys
from zlib import crc32

import numpy as np
from aiohttp import web
from transformers import AutoTokenizer

from slim_rl.engines.engine import Generation
from slim_rl.games.matching.board import optimal_assignment
from slim_rl.games.matching.names import format_proposal
from slim_rl.games.matching.partner import question
from slim_rl.games.matching.rules import read_prompt
from tests.sglang_server import Server


class Asker:
    max_context_tokens = 16_384

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer

    async def generate(self, input_ids, sampling):
        prompt, *turns = self._tokenizer.decode(input_ids).split("<|im_start|>assistant")
        *before, begun = (turn.rpartition("</think>")[2].strip("\n") for turn in turns)
        numbers = read_prompt(prompt)
        unseen, own_turns = np.argwhere(numbers < 0).tolist(), int(re.search(r"Turns left: (\d+)", prompt)[1])
        asked = sum("[message]" in turn for turn in before)
        asks = asked < min(crc32(prompt.encode()) % own_turns, len(unseen))
        if begun.startswith("[message]") or (asks and not begun):
            turn = question(*unseen[asked % len(unseen)])
        else:
            turn = "[propose] " + format_proposal(optimal_assignment(np.where(numbers < 0, 50, numbers)).tolist())
        ids = self._tokenizer.encode(turn.removeprefix(begun), add_special_tokens=False)
        ids.append(sampling.stop_token_ids[0])
        return Generation(ids, [-0.5] * len(ids), "stop")

    def release(self, session):
        pass


if __name__ == "__main__":
    model, port = sys.argv[1:]
    server = Server(Asker(AutoTokenizer.from_pretrained(model)), 0, model)
    web.run_app(server.app(), host="127.0.0.1", port=int(port), access_log=None, print=None)
