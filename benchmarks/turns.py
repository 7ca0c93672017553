"""What our side of a turn costs under SLIME, with an engine that answers at once.

    python -m benchmarks.turns --slime SLIME_DIR --model CHECKPOINT

Ours is `hooks.generate` with the scripted partner: token ids that grow, what is heard rendered once. The peer
is the loop of SLIME's examples that keep a dialogue as messages (as its OpenReward example does): each turn
the whole text is rendered by the chat template and tokenised again. Both get the same dialogues: an agent that
asks for one score a turn. Reported: turns a second on one core, at 10, 20 and 40 turns of the agent a dialogue.
"""

import argparse
import asyncio
import statistics
import sys
import time
from itertools import count, cycle, islice, product
from types import SimpleNamespace

import torch
from transformers import AutoTokenizer

from slim_rl.config import Config, MatchingConfig
from slim_rl.games.matching import generate_games, load_game
from slim_rl.games.matching.language import question
from slim_rl.games.matching.scripted import shy_partner

SIZE = 8


class AnswersAtOnce:
    """Asks for one score after the other, in SGLang's words, and never says the same twice."""

    said = count()

    def __init__(self, tokenizer, turns):
        cells = islice(cycle(product(range(SIZE), repeat=2)), turns)
        self.texts = [f"{question(*cell)} That is question {next(self.said)}." for cell in cells]
        end = tokenizer.convert_tokens_to_ids("<|im_end|>")
        self.ids = [[*tokenizer.encode(text, add_special_tokens=False), end] for text in self.texts]
        self.answers = [
            {
                "text": text,
                "meta_info": {
                    "finish_reason": {"type": "stop"},
                    "output_token_logprobs": [[-1.0, token, None] for token in ids],
                },
            }
            for text, ids in zip(self.texts, self.ids, strict=True)
        ]
        self.turn = 0

    async def request(self, input_ids, sampling, sampling_params=None, given_up=None):
        self.turn += 1
        return self.answers[self.turn - 1]


def ours(engine, tokenizer, games, turns):
    from slime.rollout import sglang_rollout
    from slime.utils.types import Sample

    from slim_rl.slime import hooks

    board = MatchingConfig(size=SIZE)
    config = Config.model_validate({"board": board, "games": {"max_turns": 2 * turns}, "model": {"turn_tokens": 64}})
    state = SimpleNamespace(tokenizer=tokenizer, aborted=False)
    sglang_rollout.GenerateState = lambda args: state
    hooks._engine, hooks._config = (lambda args: engine), (lambda path: config)

    async def play():
        for index, game in enumerate(games):
            sample = Sample(index=index, prompt=game["prompt"], label=game["game_id"], metadata={**game["game_state"]})
            await hooks.generate(SimpleNamespace(), sample, {"max_new_tokens": 64, "temperature": 1.0})

    asyncio.run(play())


def tokenised_again(engine, tokenizer, games, turns):
    async def play():
        for line in games:
            game = load_game(line, 2 * turns)
            agent, partner = game.seats
            shy = shy_partner(game, partner, always_accept=True)
            messages = [{"role": "user", "content": game.observe(agent)}]
            while game.turn is not None:
                text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
                ids = tokenizer.encode(text, add_special_tokens=False)
                answer = await engine.request(ids, None)
                messages.append({"role": "assistant", "content": answer["text"]})
                game.step(answer["text"])
                if game.turn is not None:
                    game.step(shy.turn(game.observe(partner)))
                    messages.append({"role": "user", "content": game.observe(agent)})

    asyncio.run(play())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--slime", required=True, help="SLIME's source")
    parser.add_argument("--model", required=True, help="a checkpoint folder with a Qwen tokenizer and chat template")
    parser.add_argument("--games", type=int, default=40)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    sys.path.insert(0, given.slime)
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    if tokenizer.chat_template is None:
        # ChatML, which Qwen's template comes to for such messages.
        tokenizer.chat_template = (
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
        )
    games = list(generate_games(given.games, 0, MatchingConfig(size=SIZE)))
    print(f"{'turns':>6} {'ours, turns/s':>16} {'tokenised again, turns/s':>26}")
    for turns in (10, 20, 40):
        rates = {ours: [], tokenised_again: []}
        for _ in range(given.runs):
            for way, found in rates.items():
                engine = AnswersAtOnce(tokenizer, turns * len(games))
                started = time.perf_counter()
                way(engine, tokenizer, games, turns)
                found.append(engine.turn / (time.perf_counter() - started))
        medians = [statistics.median(found) for found in rates.values()]
        print(f"{turns:>6} {medians[0]:>16,.0f} {medians[1]:>26,.0f}")


if __name__ == "__main__":
    main()
