"""Training states and checkpoint folders on disk."""

import os

import httpx2
import pytest
import torch
from huggingface_hub.utils import hf_raise_for_status

from slim_rl.core.errors import UserError
from slim_rl.engines.model import checkpoint_folder, load_model
from slim_rl.training.checkpoint import load_state, save_model, save_state


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
