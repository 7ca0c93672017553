"""The programs of examples/agents: do they learn to call a tool as the built-in game does?

    python -m benchmarks.agents train --model models/base --seeds 0 1 --folder OUT   # models/base of PROFILE=calculator

`train` goes on with what OUT holds, skips agents whose framework is missing, and prints a table.
"""

import asyncio
import json
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import slim_rl
from slim_rl.games import game_parameters, load_games
from slim_rl.rollout.seating import Request, Seating
from slim_rl.runtime.cli import argument_parser

AGENTS = {  # game, parameters, and the package that it needs
    "built-in game": ("calculator", {}, "slim_rl"),
    "openai": ("agent:examples.agents.sums:run", {}, "openai"),
    "Agents SDK": ("agent:examples.agents.agents_sdk:run", {}, "agents"),
    "LangGraph": ("agent:examples.agents.graph:run", {}, "langgraph"),
    "program": ("agent", {"command": [sys.executable, "examples/agents/program.py"]}, "slim_rl"),
}
TRAIN = {"games_per_step": 8, "samples_per_game": 8, "learning_rate": 2e-4, "average_over": "tokens"}
HELD_OUT = 256


def main() -> None:
    parser = argument_parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    train_parser = commands.add_parser("train")
    train_parser.add_argument("--model", required=True)
    train_parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    train_parser.add_argument("--steps", type=int, default=40)
    train_parser.add_argument("--folder", type=Path, required=True)
    train_parser.add_argument("--agents", nargs="+", choices=AGENTS, default=list(AGENTS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for seed in args.seeds:
        for name in args.agents:
            if find_spec(AGENTS[name][2]):
                rows.append({"agent": name, "seed": seed, **train(name, args.model, args.folder, seed, args.steps)})
                print(json.dumps(rows[-1]), flush=True)
    print(pd.DataFrame(rows).to_markdown(index=False, floatfmt=".3f"))


def write_sums(folder: Path, seed: int) -> dict[str, str]:
    """The tasks of the built-in game, as the agents read them."""
    sums = load_games({"calculator": game_parameters("calculator", {})}, seed)["calculator"].taskset
    files = {}
    for name, purpose in (("tasks", "train"), ("eval_tasks", "evaluate")):
        path = folder / f"{purpose}-{seed}.jsonl"
        rows = [{"id": task.game_id, "sum": task.state["expression"]} for task in sums.tasks(purpose, 4096)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        files[name] = str(path)
    return files


def train(name: str, model: str, folder: Path, seed: int, steps: int) -> dict[str, float]:
    """Held-out tasks before and after training, and the seconds of the training."""
    game, parameters, _ = AGENTS[name]
    folder.mkdir(parents=True, exist_ok=True)
    parameters = parameters if game == "calculator" else {**parameters, **write_sums(folder, seed)}
    policy = slim_rl.Policy.load(model, max_turn_tokens=64)
    before = measure(game, parameters, policy, seed)
    started = time.monotonic()
    out = folder / f"{name}-{seed}"
    history = asyncio.run(slim_rl.train(game, policy, out, parameters=parameters, seed=seed, steps=steps, **TRAIN))
    seconds = time.monotonic() - started
    pd.DataFrame(history).to_csv(out / "history.csv", index=False)
    after = measure(game, parameters, policy, seed)
    return {
        f"{key} {when}": value for when, of in (("before", before), ("after", after)) for key, value in of.items()
    } | {"seconds": seconds}


def measure(game: str, parameters: dict, policy: slim_rl.Policy, seed: int) -> dict[str, float]:
    games = load_games({game: game_parameters(game, parameters)}, seed)
    seating = Seating(games, {"policy": policy.maker()}, seed)
    tasks = games[game].taskset.tasks("evaluate", HELD_OUT)

    async def play() -> list[slim_rl.Episode]:
        requests = [Request(f"evaluate/{task.game_id}", game, task, ("policy",)) for task in tasks]
        return await asyncio.gather(*map(seating.play, requests))

    policy.engine.reset()
    played = [episode for episode in asyncio.run(play()) if episode.rewards]
    values = {"calls": [e.metrics["calls"] for e in played], "reward": [next(iter(e.rewards.values())) for e in played]}
    made = {"played": len(played)}
    for key, of in values.items():
        made |= {key: float(np.mean(of)), f"{key} ±": float(np.std(of, ddof=1) / len(of) ** 0.5)}
    again, sampled = (sum(e.metrics.get(key, 0) for e in played) for key in ("encoded_again_tokens", "sampled_tokens"))
    return {**made, "encoded again": again / max(sampled, 1)}


if __name__ == "__main__":
    main()
