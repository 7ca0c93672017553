"""What can be known before a run is checked before its first stage, and nothing of the last run is touched."""

import subprocess
import sys
from pathlib import Path

import pytest
from transformers import Qwen2Config

from slim_rl.config import Config
from slim_rl.core.errors import UserError
from slim_rl.engines import model as engines_model
from slim_rl.training import memory
from stages import ready
from tests.checkpoints import chat_tokenizer
from tests.settings import merged
from tests.workspaces import environment, fresh_copy

ROOT = Path(__file__).parents[1]
GAME = {"games": {"kuhn": {"seating": ["policy", "policy"]}}}
PLAYED = {"games": {"failing": {"seating": ["policy", "policy"]}}}


@pytest.fixture(autouse=True)
def workspace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (tmp_path / "broken.jsonl").write_text('{"task_id": 601}\n')
    (tmp_path / "judged.py").write_text(
        "from slim_rl.games import kuhn\nfrom slim_rl.games.kuhn import Parameters\n"
        "def taskset(*given):\n    made = kuhn.taskset(*given)\n    made.study = 'league'\n    return made\n"
    )
    (tmp_path / "mute.py").write_text(
        "from slim_rl.games import kuhn\nfrom slim_rl.games.kuhn import Parameters\n"
        "def taskset(*given):\n    made = kuhn.taskset(*given)\n    made.chat_rules = lambda seat: None\n    return made\n"
    )
    (tmp_path / "league").mkdir()
    (tmp_path / "league/parameters.py").write_text("from slim_rl.studies.accuracy.parameters import Parameters\n")
    (tmp_path / "league/plan.py").write_text("def other(): ...\n")
    return tmp_path


SERVED = {"games": {"kuhn": {"seating": ["policy", "service:partner"]}}, "services": {"partner": {}}}
CASES = {
    "estimator": ({**GAME, "train": {"advantage": "no_such:one"}}, "no_such"),
    "filter": ({**GAME, "train": {"filters": ["json:no_such"]}}, "no_such"),
    "reward": ({"games": {"kuhn": {**GAME["games"]["kuhn"], "reward_function": {"function": "no_such:one"}}}}, "no_such"),
    "arguments of a reward": (
        {"games": {"kuhn": {**GAME["games"]["kuhn"], "reward_function": {"function": "number", "arguments": {"x": 1}}}}}, "number",
    ),
    "a part of a study": ({"games": {"judged": GAME["games"]["kuhn"]}}, "league.plan of the study league has no series"),
    "key": (SERVED, "OPENAI_API_KEY"),
    "checkpoint": ({**GAME, "model": {"base": "models/no/such"}}, "models/no/such"),
    "gguf": ({**GAME, "model": {"base": "no_such.gguf"}}, "no_such.gguf"),
    "opponent": ({"games": {"kuhn": {"seating": ["policy", "checkpoint:./no_such"]}}}, "./no_such"),
    "player": ({"games": {"kuhn": {"seating": ["policy", "partner"]}}}, "The game kuhn cannot seat partner"),
    "rules for a chat model": ({**SERVED, "games": {"mute": SERVED["games"]["kuhn"]}}, "mute has no rules for a chat model"),
    "file": ({"games": {"execution": {"file": "data/no_such.jsonl"}}}, "data/no_such.jsonl"),
    "line of a file": ({"games": {"execution": {"file": "broken.jsonl"}}}, "broken.jsonl, line 1"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_missing_is_named(case):
    parameters, named = CASES[case]
    with pytest.raises(UserError) as error:
        ready.check(Config.model_validate(parameters))
    assert named in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "named"),
    [({}, "GB"), ({"warmstart": {"checkpoint": True}}, "GB"), ({"train": {"backend": "slime"}}, None)],
)
def test_a_model_too_large_for_the_memory_is_refused_without_reading_its_weights(
    changes, named, workspace, monkeypatch
):
    """Qwen2.5-7B, of which there is no more than a config.json and a tokenizer. On a cluster it need not fit here."""
    folder = workspace / "large"
    chat_tokenizer("qwen2.5").save_pretrained(folder)
    Qwen2Config(vocab_size=152064, hidden_size=3584, intermediate_size=18944, num_hidden_layers=28,
                num_attention_heads=28, num_key_value_heads=4, tie_word_embeddings=False).save_pretrained(folder)  # fmt: skip
    monkeypatch.setattr(memory, "free_bytes", lambda: 40_000_000_000)
    config = Config.model_validate({**GAME, "model": {"base": str(folder)}, **changes})
    if named is None:
        ready.check_checkpoints(config, [str(folder)])
    else:
        with pytest.raises(UserError, match=named):
            ready.check_checkpoints(config, [str(folder)])


def test_what_a_gguf_file_needs_is_told(workspace, monkeypatch):
    (workspace / "mine.gguf").touch()
    monkeypatch.setattr(engines_model, "_GGUF_NEEDS", {"no_such_package": "gguf==1.0"})
    with pytest.raises(UserError, match=r"pip install gguf==1\.0"):
        ready.check_checkpoints(Config.model_validate({**GAME, "model": {"base": "mine.gguf"}}), ["mine.gguf"])


def test_the_module_of_a_user_that_fails_is_a_sentence(workspace):
    (workspace / "failing.py").write_text("import no_such_library\n")
    with pytest.raises(ValueError, match=r"failing .*no_such_library"):
        Config.model_validate(PLAYED)


ENTRY_POINTS = {
    "dvc": ["dvc", "repro"],
    "make repro": [sys.executable, "-m", "stages.run"],
    "pipeline": [sys.executable, "-m", "flows.pipeline"],
}


@pytest.mark.slow
def test_every_entry_point_checks_first_and_leaves_the_last_run_as_it_is(tmp_path):
    folder = fresh_copy(tmp_path / "copy", merged(SERVED, {"profile": None}))
    outputs = [
        folder / name / "kept.txt" for name in ("data/games/train", "models/base", "models/trained", "data/episodes")
    ]
    for path in outputs:
        path.parent.mkdir(parents=True)
        path.write_text("of the last run")
    without = {name: value for name, value in environment().items() if name != "OPENAI_API_KEY"}
    for name, command in ENTRY_POINTS.items():
        done = subprocess.run(command, cwd=folder, env=without, capture_output=True, text=True)
        said = done.stdout + done.stderr
        assert done.returncode != 0 and "OPENAI_API_KEY" in said and "Traceback" not in said, (name, said[-2000:])
        assert "Running stage 'games'" not in said
        assert all(path.exists() for path in outputs)
