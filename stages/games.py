"""Stage `games`: the games to train on and those held out."""

from pathlib import Path

from tqdm import tqdm

from slim_rl.config import load_config
from slim_rl.errors import told_in_a_sentence
from slim_rl.games import game_kind, write_games


def main() -> None:
    config = load_config()
    kind = game_kind(config)
    for name, count in (("train", config.games.train_count), ("evaluate", config.games.eval_count)):
        games = tqdm(kind.games(name, count), total=count, desc=f"{name} games", unit="game")
        write_games(Path(f"data/games/{name}.{config.games.format}"), games)


if __name__ == "__main__":
    with told_in_a_sentence():
        main()
