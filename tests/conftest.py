"""What many tests share: a tiny Qwen with random weights, its tokenizer, and tasks of the matching game."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Two OpenMP threads that wait for each other beside other tests take many times as long as one.
os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}

import copy
import signal
import subprocess
from contextlib import closing
from importlib import import_module
from pathlib import Path

import pytest
import torch
from xdist.scheduler import LoadScopeScheduling

from slim_rl.engines.local import LocalEngine
from slim_rl.games import load_games
from slim_rl.games.matching.parameters import Parameters
from slim_rl.players.renderer import Renderer
from slim_rl.sandbox import Sandbox, SandboxConfig
from slim_rl.training.demonstrations import Demonstrations
from slim_rl.training.tiny import tiny_qwen
from slim_rl.training.tokenizer import chat_corpus, small_tokenizer
from tests.partner import PartnerServer
from tests.settings import miniature
from tests.workspaces import fresh_copy, repro

torch.set_num_threads(1)
# A shell starts its background jobs without Ctrl-C, and what they start has none either.
signal.signal(signal.SIGINT, signal.default_int_handler)


FINISHED = ("flows/test_flows.py", "test_pipeline.py", "test_api.py")
"""Files that need the finished pipeline."""


def pytest_collection_modifyitems(items):
    """The longest first."""
    items.sort(key=lambda item: item.get_closest_marker("pipeline") is None)


class _ByFile(LoadScopeScheduling):
    """Each file is tested in one process, so that what its tests share is made once; and all of `FINISHED` in the same."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "finished" if file.endswith(FINISHED) else file


def pytest_xdist_make_scheduler(config, log):
    return _ByFile(config, log)


@pytest.fixture(scope="module")
def sandbox():
    """It runs one program at a time."""
    with closing(Sandbox(SandboxConfig(workers=1))) as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def matching():
    """The matching game as its defaults have it."""
    return load_games({"matching": Parameters()}, seed=0)["matching"]


@pytest.fixture(scope="session")
def shown(matching):
    return Demonstrations({"matching": matching}, count=64, last_seat=0)


@pytest.fixture(scope="session")
def demonstrations(shown):
    return shown.alternating(len(shown))


@pytest.fixture(scope="session")
def tokenizer(demonstrations, shown):
    return small_tokenizer(chat_corpus(demonstrations), shown.words)


@pytest.fixture(scope="session")
def renderer(tokenizer):
    return Renderer(tokenizer, thinking=False)


@pytest.fixture(scope="session")
def untouched_model(tokenizer):
    return tiny_qwen(tokenizer, max_context_tokens=512, seed=0)


@pytest.fixture
def model(untouched_model):
    return copy.deepcopy(untouched_model)


@pytest.fixture
def engine(model):
    return LocalEngine(model)


@pytest.fixture(scope="session")
def tasks(matching):
    return list(matching.taskset.tasks("train", 8))


@pytest.fixture
def run_stage():
    """run_stage(name): runs a stage in this process, in the current folder."""
    threads = torch.get_num_threads()
    yield lambda name: import_module(f"stages.{name}").main()
    torch.set_num_threads(threads)


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of 64 kB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture(scope="session")
def partner_server():
    server = PartnerServer()
    yield server
    server.close()


@pytest.fixture
def serve(partner_server):
    """serve("--faults", "0.3"): a partner's server with these options, and with counts from 0. There is one server."""

    def start(*arguments: str) -> PartnerServer:
        partner_server.start_over(*arguments)
        return partner_server

    return start


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    """A workspace in which `dvc repro` has run the pipeline in miniature. Copy it before you change it."""
    folder = fresh_copy(tmp_path_factory.mktemp("pipeline"), miniature())
    done = repro(folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder
