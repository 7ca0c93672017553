"""A checkpoint played through a server that speaks SGLang plays as it does in this process."""

import sys

import pytest

from slim_rl.config import Config
from slim_rl.errors import UserError
from slim_rl.evaluation import series
from slim_rl.games.matching import kind
from slim_rl.rollout.collect import collect
from slim_rl.rollout.table import Job
from slim_rl.seating import make_table
from slim_rl.training.checkpoint import save_model

SEATING = ("trained", "scripted")
SERVER = f"{sys.executable} -m slim_rl.engines.server --model {{model}} --port {{port}} --threads 1"


def test_through_a_server_as_in_this_process(model, tokenizer, games, tmp_path):
    save_model(tmp_path / "model", model, tokenizer)
    played = {}
    for server in (None, SERVER):
        config = Config.model_validate({"evaluate": {"temperature": 0.0, "server": server}})
        seat = series.policy(config, tmp_path / "model", games).seat()
        table = make_table(config, kind(config), SEATING, {"trained": seat})
        jobs = [Job(game["game_id"], game, SEATING) for game in games]
        played[server] = collect(jobs, table.play, tmp_path / str(bool(server)), 8)
    for here, there in zip(played[None], played[SERVER], strict=True):
        assert here.turns == there.turns and here.rewards == there.rewards
    series._servers.close()


def test_a_server_that_ends_at_once_is_told_in_a_sentence(model, tokenizer, games, tmp_path):
    save_model(tmp_path / "model", model, tokenizer)
    config = Config.model_validate({"evaluate": {"server": "false {model} {port}"}})
    with pytest.raises(UserError, match="did not come up"):
        series.policy(config, tmp_path / "model", games)
