"""Training states and checkpoint folders on disk."""

import asyncio
import gc
import os

import httpx2
import pytest
import torch
from huggingface_hub.utils import hf_raise_for_status

from slim_rl.core.errors import Diverged, UserError
from slim_rl.engines.model import checkpoint_folder, load_model
from slim_rl.runtime.files import write_text
from slim_rl.training.backend import LocalBackend
from slim_rl.training.checkpoint import PRECISION, after_divergence, load_state, save_model, save_state
from slim_rl.training.config import TrainConfig
from slim_rl.training.weights import Weights


class Trap:
    def __reduce__(self):
        return os.mkdir, ("sprung",)


def test_no_code_runs_when_a_state_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"run": Trap()}, tmp_path / "state.pt")
    with pytest.raises(Exception, match=r"[Ww]eights.only"):
        load_state(tmp_path / "state.pt")
    assert not (tmp_path / "sprung").exists()


def test_a_full_disk_is_told_in_a_sentence_and_the_state_before_stays(small_disk):
    save_state(small_disk / "state.pt", {"run": {"step": 1}})
    with pytest.raises(UserError, match=r"state\.pt could not be written: the disk is full"):
        save_state(small_disk / "state.pt", {"run": {"step": 2}, "model": torch.zeros(100_000)})
    assert [path.name for path in small_disk.iterdir()] == ["state.pt"]
    assert load_state(small_disk / "state.pt") == {"run": {"step": 1}}


def test_a_state_from_a_gpu_is_read_where_there_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
    save_state(tmp_path / "state.pt", {"weights": torch.ones(3)})
    state = load_state(tmp_path / "state.pt")
    assert state and state["weights"].tolist() == [1, 1, 1]


def test_averages_go_on_where_the_weights_are(model, engine):
    config = TrainConfig(averaging_decay=0.5)
    state = asyncio.run(LocalBackend(config, Weights(model), engine).save())
    elsewhere = LocalBackend(config, Weights(model.to("meta")), engine)  # in the place of a GPU
    asyncio.run(elsewhere.load(state))
    assert asyncio.run(elsewhere.update([], 0.1)) == {}
    assert {mean.device.type for mean in elsewhere.averages.values()} == {"meta"}


SIZE = 4321


def train(folder, learning_rate, key="game", diverges=False):
    """A training that keeps a state after step 2, and plays the third; returns the step that it began with."""

    async def training():
        async with after_divergence(folder, key, learning_rate):
            state = load_state(folder / "state.pt") or {"run": {"step": 0}}
            if diverges:
                write_text(folder / PRECISION, "bf16")
                save_state(folder / "state.pt", {"run": {"step": 2}, "weights": torch.ones(SIZE)})
                for step in range(4):
                    write_text(folder / f"rollouts/step-{step:05d}/0.parquet", f"played at {learning_rate}")
                raise Diverged("a weight is no finite number")
            return state["run"]["step"]

    return asyncio.run(training())


@pytest.fixture
def diverged(tmp_path):
    """The folder of a training that diverged at the learning rate 1."""
    with pytest.raises(Diverged):
        train(tmp_path / "diverged", 1.0, diverges=True)
    return tmp_path / "diverged"


@pytest.mark.parametrize(("rate", "begins"), [(0.5, 2), (1.0, 0), (2.0, 0)])
def test_only_a_smaller_learning_rate_goes_on_from_what_diverged_and_says_so(diverged, capsys, rate, begins):
    assert train(diverged.with_name("other"), rate) == begins
    said = "goes on from step 2, which was trained at the learning rate 1.0"
    assert (said in capsys.readouterr().out) == bool(begins)
    assert (diverged / "state.pt").exists() != bool(begins)
    assert (diverged.with_name("other") / PRECISION).exists() == bool(begins)


def test_what_the_smaller_learning_rate_had_played_from_other_weights_goes(diverged):
    folder = diverged.with_name("smaller")
    for step in (0, 2, 5):  # stopped before its first state
        write_text(folder / f"rollouts/step-{step:05d}/0.parquet", "played at 0.5")
    assert train(folder, 0.5) == 2
    played = {path.parent.name: path.read_text() for path in folder.rglob("*.parquet")}
    assert played == dict.fromkeys(["step-00000", "step-00001", "step-00002"], "played at 1.0")


def test_a_state_that_diverged_takes_no_memory_in_the_next_training(diverged):
    async def training():
        async with after_divergence(diverged.with_name("smaller"), "game", 0.5):
            return sum(type(thing) is torch.Tensor and thing.shape == (SIZE,) for thing in gc.get_objects())

    assert asyncio.run(training()) == 0


def test_a_damaged_state_of_another_training_is_not_read(diverged):
    (diverged / "state.pt").write_text("damaged")
    assert train(diverged.with_name("other"), 0.5, key="another game") == 0


def test_a_checkpoint_without_a_tokenizer_or_that_is_none(tmp_path, model, tokenizer):
    save_model(tmp_path / "model", model, tokenizer)
    load_model(tmp_path / "model")
    for file in (tmp_path / "model").glob("tokenizer*"):
        file.unlink()
    with pytest.raises(UserError, match="has no tokenizer"):
        load_model(tmp_path / "model")
    with pytest.raises(UserError, match="nowhere is neither a folder nor a checkpoint"):
        load_model(tmp_path / "nowhere")


def test_a_gated_checkpoint_is_told_apart_from_a_missing_one(monkeypatch):
    address = "https://huggingface.co/org/gated/resolve/main/config.json"
    headers = {"X-Error-Code": "GatedRepo", "X-Error-Message": "You are not in the authorized list."}
    answer = httpx2.Response(403, headers=headers, request=httpx2.Request("GET", address))
    monkeypatch.setattr("slim_rl.engines.model.snapshot_download", lambda *_, **__: hf_raise_for_status(answer))
    with pytest.raises(UserError, match=r"^org/gated .* gated repo .* You are not in the authorized list\.$"):
        checkpoint_folder("org/gated")
