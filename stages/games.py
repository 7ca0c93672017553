"""Stage `games`: the boards to train on and those held out."""

import json
from functools import partial
from pathlib import Path

from tqdm import tqdm

from slim_rl.config import load_config
from slim_rl.errors import told_in_a_sentence
from slim_rl.games.matching import board_seed, generate_games
from slim_rl.rollout.store import write_whole


def main() -> None:
    config = load_config()
    for name, count in (("train", config.games.train_count), ("evaluate", config.games.eval_count)):
        seed = board_seed(config.seed, name)
        games = generate_games(count, seed, config.board)
        lines = (
            json.dumps(game) + "\n" for game in tqdm(games, total=count, desc=f"{name} games", unit="game")
        )
        text = "".join(lines)
        write_whole(Path(f"data/games/{name}.jsonl"), partial(Path.write_text, data=text))


if __name__ == "__main__":
    with told_in_a_sentence():
        main()
