"""What our side of a turn costs under SLIME, with an engine that answers at once.

    python -m benchmarks.turns --slime SLIME_DIR --model CHECKPOINT

Ours is `slim_rl.slime.generate` with the scripted partner: token ids that grow, and each observation rendered once. The
peer is the loop of SLIME's examples that keep a dialogue as messages (as its OpenReward example does): each turn the
whole text is rendered by the chat template and tokenised again. Both get the same dialogues: an agent that asks for one
score per turn. Reported: turns per second on one core, at 10, 20 and 40 turns of the agent per dialogue.
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

from slim_rl.games import game_parameters, load_games
from slim_rl.games.matching.wordings import question
from slim_rl.slime.launch import task_line
from slim_rl.slime.parameters import RunParameters

SIZE = 8


class AnswersAtOnce:
    """Asks for one score per turn, in SGLang's words, and never says the same twice."""

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

    async def request(self, input_ids, sampling, *_):
        self.turn += 1
        return self.answers[self.turn - 1]


def slime_args(tokenizer, game):
    """SLIME's arguments in a training of `game`."""
    from slime.rollout import sglang_rollout

    from slim_rl.slime.context import Context

    args, state = SimpleNamespace(), SimpleNamespace(tokenizer=tokenizer, aborted=False)
    sglang_rollout.GenerateState = lambda args: state
    context = Context.of(args)
    context.parameters = RunParameters(games={game.name: game.parameters}, model={"turn_tokens": 64})
    return args


def ours(engine, args, game, tasks):
    from slime.utils.types import Sample

    from slim_rl.slime.context import Context
    from slim_rl.slime.generate import generate

    Context.of(args).engine = engine

    async def play():
        for index, task in enumerate(tasks):
            row = task_line(game.name, index, task)
            sample = Sample(index=index, prompt=task.prompt, label=task.game_id, metadata=row["metadata"])
            await generate(args, sample, {"max_new_tokens": 64, "temperature": 1.0})

    asyncio.run(play())


def tokenised_again(engine, args, game, tasks):
    from slime.rollout import sglang_rollout

    tokenizer = sglang_rollout.GenerateState(args).tokenizer

    async def play():
        for task in tasks:
            played = game.taskset.load(task)
            agent, partner = played.seats
            shy = game.taskset.player("scripted", played, partner, 0)
            messages = [{"role": "user", "content": played.observe(agent)}]
            while played.turn is not None:
                text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
                ids = tokenizer.encode(text, add_special_tokens=False)
                answer = await engine.request(ids, None)
                messages.append({"role": "assistant", "content": answer["text"]})
                played.step(answer["text"])
                if played.turn is not None:
                    played.step(await shy.respond(played.observe(partner)))
                    messages.append({"role": "user", "content": played.observe(agent)})

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
    print(f"{'turns':>6} {'ours, turns/s':>16} {'tokenised again, turns/s':>26}")
    for turns in (10, 20, 40):
        parameters = {"size": SIZE, "seating": ["policy", "scripted"], "max_turns": 2 * turns}
        (game,) = load_games({"matching": game_parameters("matching", parameters)}, seed=0).values()
        tasks, args = list(game.taskset.tasks("train", given.games)), slime_args(tokenizer, game)
        rates = {ours: [], tokenised_again: []}
        for _ in range(given.runs):
            for way, found in rates.items():
                engine = AnswersAtOnce(tokenizer, turns * len(tasks))
                started = time.perf_counter()
                way(engine, args, game, tasks)
                found.append(engine.turn / (time.perf_counter() - started))
        medians = [statistics.median(found) for found in rates.values()]
        print(f"{turns:>6} {medians[0]:>16,.0f} {medians[1]:>26,.0f}")


if __name__ == "__main__":
    main()
