"""Parameters and names of games; parameters are read without the libraries that the games are played with."""

import subprocess
import sys

import pytest

from slim_rl.core.errors import UserError
from slim_rl.core.game import seed_of
from slim_rl.games import game_parameters, load_games

READ = """
import sys
from slim_rl.games import game_parameters
for name in ("matching", "kuhn", "tictactoe", "textarena:Nim-v0"):
    print(*game_parameters(name, {"train_count": 7}).seating)
print({"numpy", "scipy", "textarena", "torch"} & set(sys.modules))
"""


def test_parameters_are_read_without_the_games_libraries():
    read = subprocess.run([sys.executable, "-c", READ], capture_output=True, text=True)
    assert read.returncode == 0, read.stderr
    assert read.stdout.splitlines() == ["policy scripted"] + 3 * ["policy policy"] + ["set()"]


@pytest.mark.parametrize("name", ["calculator", "execution", "kuhn", "matching", "prediction", "tictactoe"])
def test_a_variant_of_a_game_that_has_none_is_refused(name):
    with pytest.raises(UserError, match="no variants"):
        load_games({f"{name}:hard": game_parameters(f"{name}:hard", {})}, seed=0)


def test_a_seed_is_the_same_on_every_machine():
    assert seed_of("matching-3-stakes-0-0") == 9277770757209878527
    assert len({seed_of(0, "1"), seed_of("01"), seed_of(1, "0")}) == 3
