"""Games files: JSONL or Parquet, boards or the seeds of boards."""

import json

import pytest

from slim_rl.config import Config
from slim_rl.errors import UserError
from slim_rl.games import game_kind, read_games, write_games

GAMES = ["matching", "tictactoe", "kuhn", "textarena:Nim-v0"]


def kind_of(game, **sections):
    return game_kind(Config.model_validate({"game": game, **sections}))


def everything_read(kind, line):
    game = kind.load(line)
    return [game.observe(seat) for seat in game.seats]


@pytest.mark.parametrize("on_the_fly", [False, True])
@pytest.mark.parametrize("game", GAMES)
def test_jsonl_and_parquet_hold_the_same_games(tmp_path, game, on_the_fly):
    kind = kind_of(game, games={"on_the_fly": on_the_fly}, board={"selection": "dialop"})
    lines = list(kind.games("train", 5))
    for ending in ("jsonl", "parquet"):
        write_games(tmp_path / f"games.{ending}", lines)
    one, two = (read_games(tmp_path / f"games.{ending}", kind) for ending in ("jsonl", "parquet"))
    assert one == two == lines
    assert [everything_read(kind, line) for line in one] == [everything_read(kind, line) for line in two]


def test_on_the_fly_a_line_is_a_seed_and_always_the_same_board():
    kind = kind_of("matching", games={"on_the_fly": True})
    series = {purpose: list(kind.games(purpose, 40)) for purpose in ("train", "evaluate", "demonstrations")}
    for lines in series.values():
        assert all(set(line["game_state"]) == {"seed"} and line["prompt"] == "" for line in lines)
    boards = {
        line["game_id"]: json.dumps(kind.load(line).board.to_game_state())
        for lines in series.values()
        for line in lines
    }
    assert len(boards) == len(set(boards.values())) == 120  # no two lines of any series are the same board
    again = kind_of("matching", games={"on_the_fly": True})
    assert list(again.games("train", 40)) == series["train"]
    for line in series["train"][::-1]:
        assert json.dumps(again.load(line).board.to_game_state()) == boards[line["game_id"]]
    other = kind_of("matching", seed=1, games={"on_the_fly": True})
    assert not set(boards) & {line["game_id"] for line in other.games("train", 40)}
    assert list(kind.games("train", 3)) == series["train"][:3]


def test_a_damaged_parquet_file_is_told_in_a_sentence(tmp_path):
    kind, path = kind_of("kuhn"), tmp_path / "games.parquet"
    write_games(path, kind.games("train", 50))
    whole = path.read_bytes()
    for damage in (whole[:-20], b"", b"no parquet at all", whole[:40] + bytes(60) + whole[100:]):
        path.write_bytes(damage)
        with pytest.raises(UserError, match=r"games\.parquet") as error:
            read_games(path, kind)
        assert "\n" not in str(error.value)


def test_a_damaged_line_of_a_parquet_file_is_named(tmp_path):
    kind, path = kind_of("kuhn"), tmp_path / "games.parquet"
    lines = list(kind.games("train", 3))
    write_games(path, [*lines[:2], {**lines[2], "game_state": {"seed": -4}}])
    with pytest.raises(UserError, match=r"games\.parquet, line 3 is not a game: its seed is -4"):
        read_games(path, kind)
