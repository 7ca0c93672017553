"""Files that people have: checkpoints, tokenizers and tasks are read, or refused in one sentence before anything is made."""

import gzip
import json
import shutil
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet
import pytest

from slim_rl.config import Config
from slim_rl.core.errors import UserError
from slim_rl.engines.model import load_model
from slim_rl.games import execution, load_games
from slim_rl.training.checkpoint import save_model
from stages import base_model, ready
from tests.checkpoints import chat_checkpoint


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return chat_checkpoint(tmp_path_factory.mktemp("whole") / "whole", "qwen2.5")


@pytest.fixture
def checkpoint(whole, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(whole, tmp_path / "mine")


def changed(file, **values):
    def change(folder):
        path = folder / file
        path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **values}))

    return change


def cut(file, end):
    return lambda folder: (folder / file).write_bytes((folder / file).read_bytes()[:end])


def adapter_alone(folder):
    (folder / "config.json").unlink()
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "Qwen/Qwen2.5-1.5B"}')


def without_a_shard(folder):
    (folder / "model.safetensors").unlink()
    changed("model.safetensors.index.json", weight_map={"lm_head.weight": "model-00001-of-00002.safetensors"})(folder)


def newer_tokenizer(folder):
    text = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**text, "model": {"type": "Newer", "vocab": {}}}))


def with_an_id_twice(folder):
    text = json.loads((folder / "tokenizer.json").read_text())
    text["model"]["vocab"]["Q"] = 3
    (folder / "tokenizer.json").write_text(json.dumps(text))


DAMAGED = {
    "GPTQ": (changed("config.json", quantization_config={"quant_method": "gptq", "bits": 4}), "is quantised (gptq)"),
    "bitsandbytes": (changed("config.json", quantization_config={"load_in_4bit": True}), "is quantised"),
    "a newer tokenizer": (newer_tokenizer, "can be loaded: Exception"),
    "an id twice": (with_an_id_twice, "have the same id"),
    "half a tokenizer": (cut("tokenizer.json", 100), "can be loaded"),
    "half a config": (cut("config.json", 30), "can be loaded"),
    "an empty config": (cut("config.json", 0), "can be loaded"),
    "half of the weights": (cut("model.safetensors", 5000), "can be loaded: SafetensorError"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "has no weights"),
    "a pointer of Git LFS": (
        lambda folder: (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n"),
        "can be loaded: SafetensorError",
    ),
    "a shard is missing": (without_a_shard, "can be loaded: .*model-00001-of-00002"),
    "an adapter alone": (adapter_alone, "can be loaded"),
    "an unknown architecture": (changed("config.json", model_type="qwen9"), "can be loaded: .*qwen9"),
    "code of its own": (changed("config.json", model_type="mine", auto_map={"AutoConfig": "mine.Config"}), "can be loaded"),
    "another kind": (changed("config.json", model_type="gemma2"), "cannot sample from a 'gemma2' model"),
    "a sliding window": (changed("config.json", use_sliding_window=True, sliding_window=8, max_window_layers=0, layer_types=None), "sliding"),
    "an epsilon that is no number": (changed("config.json", rms_norm_eps=float("nan")), "rms_norm_eps is nan"),
    "angles that are no numbers": (changed("config.json", rope_parameters={"rope_type": "default", "rope_theta": -1}), "inv_freq has numbers"),
    "a context that is no number": (changed("tokenizer_config.json", model_max_length="7"), "model_max_length is '7'"),
    "a token that the model lacks": (changed("tokenizer_config.json", pad_token="<pad>"), "but its model only"),
    "a damaged template": (lambda folder: (folder / "chat_template.jinja").write_text("{% if"), "chat template"),
    "more layers": (changed("config.json", num_hidden_layers=3, layer_types=None), "not those of its config.json"),
    "fewer layers": (changed("config.json", num_hidden_layers=1, layer_types=None), "not those of its config.json"),
    "other sizes": (changed("config.json", hidden_size=64), "not those of its config.json"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGED)
def test_a_checkpoint_that_cannot_be_used_is_refused_in_a_sentence_before_it_is_copied(checkpoint, case):
    change, sentence = DAMAGED[case]
    change(checkpoint)
    config = Config(games={"kuhn": {"seating": ["policy", "policy"]}}, model={"base": str(checkpoint)})
    with pytest.raises(UserError, match=sentence.replace("(", "\\(").replace(")", "\\)")) as error:
        ready.check_checkpoints(config, [str(checkpoint)])
        base_model.copy_given(config)
        load_model(base_model.OUTPUT)
    assert "\n" not in str(error.value)


def test_the_process_that_waits_for_a_run_does_not_keep_the_memory_that_its_checks_take(checkpoint):
    changed("config.json", rms_norm_eps=float("nan"))(checkpoint)
    program = f"""
import sys
from slim_rl.config import Config
from stages import ready
try:
    ready.check(Config(games={{"kuhn": {{"seating": ["policy", "policy"]}}}}, model={{"base": {str(checkpoint)!r}}}))
except ready.UserError as error:
    print(error, "torch" in sys.modules)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "rms_norm_eps is nan" in said and said.endswith("False\n")


def test_a_checkpoint_whose_generation_settings_contradict_each_other_can_be_saved(checkpoint):
    changed("generation_config.json", do_sample=False, temperature=0.6, top_p=0.9)(checkpoint)
    save_model(checkpoint.with_name("trained"), *load_model(checkpoint))


ROW = {"task_id": 602, "text": "Write a function f.", "test_list": ["assert f(1) == 2"]}
SANITIZED = {"task_id": 602, "prompt": "Write a function f.", "test_list": ["assert f(1) == 2"], "test_imports": []}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("mbpp.jsonl", json.dumps(ROW)),
        ("mbpp.jsonl", "\n" + json.dumps(ROW) + "\r\n\r\n"),
        ("mbpp.jsonl", "\ufeff" + json.dumps(ROW)),
        ("mbpp.jsonl.gz", json.dumps(ROW) + "\n\n"),
        ("sanitized-mbpp.json", json.dumps([SANITIZED], indent=2)),
        ("sanitized.jsonl", json.dumps(SANITIZED)),
        ("mbpp.parquet", [ROW]),
        ("pandas.parquet", [{**SANITIZED, "entry_point": None, "text": None, "test_setup_code": None}]),
        ("pandas.jsonl", json.dumps({**ROW, "entry_point": None, "prompt": None, "test_setup_code": None})),
    ],
)
def test_tasks_are_read_in_the_forms_in_which_they_are_published(tmp_path, name, content):
    path = tmp_path / name
    if name.endswith(".parquet"):
        pa.parquet.write_table(pa.Table.from_pylist(content), path)
    else:
        path.write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())
    [task] = load_games({"execution": execution.Parameters(file=path)}, 0)["execution"].taskset.tasks("train", 2)
    assert task.prompt.startswith("Write a function f.") or "Write a function f." in task.prompt
    assert task.state["tests"] == ROW["test_list"] and task.state["setup"] == ""


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.jsonl", b"{", "a.jsonl"),
        ("a.jsonl", b"", "has no task"),
        ("a.jsonl", b"[1, 2]", "line 1"),
        ("a.jsonl", json.dumps(ROW).encode() + b"\n{", "line 2"),
        ("a.jsonl", json.dumps({**ROW, "test_list": "assert f(1) == 2"}).encode(), "line 1"),
        ("a.jsonl", json.dumps({**ROW, "text": 7}).encode(), "line 1"),
        ("a.jsonl", json.dumps({**ROW, "text": None}).encode(), "line 1 is not a task: text: Field required"),
        ("a.jsonl", json.dumps(ROW).encode("utf-16"), "a.jsonl"),
        ("a.json", b'{"data": []}', "a.json"),
        ("a.jsonl.gz", b"no gzip", "a.jsonl.gz"),
        ("a.parquet", b"PAR1", "a.parquet"),
        ("a.jsonl", b"[" * 100_000, "a.jsonl"),
    ],
)
def test_tasks_that_cannot_be_read_are_refused_in_a_sentence(tmp_path, name, content, sentence):
    (tmp_path / name).write_bytes(content)
    taskset = load_games({"execution": execution.Parameters(file=tmp_path / name)}, 0)["execution"].taskset
    with pytest.raises(UserError, match=sentence) as error:
        list(taskset.tasks("train", 2))
    assert "\n" not in str(error.value) and len(str(error.value)) < 500
