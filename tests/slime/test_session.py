"""SLIME 0.4 on a Ray cluster that stays up: its engines outlive a job, and the next run gets their GPUs."""

import asyncio
import subprocess
import sys

import pytest

from slim_rl.core.errors import UserError
from slim_rl.runtime.process import end, wait_until
from slim_rl.slime import launch
from slim_rl.slime.parameters import RunParameters
from tests.slime.support import answers, free_port, write_source

TRAINS = '''
"""Holds the GPU as SLIME 0.4 does (slime/ray/serving.py): by a named, detached actor, until it is disposed."""
import hashlib, os, pathlib, signal, sys, time
import ray
from ray.util.placement_group import placement_group, remove_placement_group

def flag(name):
    return sys.argv[sys.argv.index(name) + 1]

@ray.remote(num_cpus=0)
class Serving:
    def __init__(self):
        self.arguments = None
        self.gpus = placement_group([{"GPU": 1}])
        ray.get(self.gpus.ready())

    def attach(self, arguments):
        if self.arguments not in (None, arguments):
            raise ValueError("Retained serving requires unchanged configuration")
        self.arguments = arguments

    def dispose(self):
        if "stuck" in self.arguments:
            time.sleep(1000)
        remove_placement_group(self.gpus)

ray.init()
name = "rollout:" + hashlib.sha256(("explicit:" + flag("--rollout-session-id")).encode()).hexdigest() + ":serving"
serving = Serving.options(
    name=name, namespace="slime-training-recovery", lifetime="detached", get_if_exists=True
).remote()
ray.get(serving.attach.remote(sys.argv))
folder = pathlib.Path(flag("--save")).parent
(folder / "has-gpu").touch()
how = flag("--how")
if how == "waits":
    time.sleep(1000)
if how == "stuck":
    os.killpg(0, signal.SIGKILL)
if how == "fails":
    raise SystemExit(3)
(folder / "hf/1").mkdir(parents=True)
(folder / "hf/1/model.safetensors.index.json").touch()
(folder / "megatron/rollout").mkdir(parents=True)
(folder / "megatron/rollout/global_dataset_state_dict_1.pt").touch()
if how == "succeeds":
    ray.get(serving.dispose.remote())
    ray.kill(serving)
'''


@pytest.fixture(scope="module")
def cluster():
    """The address of a cluster with one GPU: its job server's."""
    ports = free_port(), free_port()
    words = ("start", "--head", "--num-gpus=1", f"--port={ports[0]}", f"--dashboard-port={ports[1]}", "--block")
    command = [sys.executable, "-m", "ray.scripts.scripts", *words, "--disable-usage-stats"]
    head, address = subprocess.Popen(command, start_new_session=True), f"http://127.0.0.1:{ports[1]}"
    try:
        assert wait_until(lambda: head.poll() is not None or answers(f"{address}/api/jobs/"), 120)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAY_ADDRESS", f"127.0.0.1:{ports[0]}")
            yield address
    finally:
        end(head, 10)


@pytest.fixture
def run(cluster, base, tmp_path):
    """A function that runs SLIME's stand-in in a folder of its own."""
    scripts = {"slime/utils/arguments.py": "--rollout-session-id", "train.py": TRAINS}
    write_source(tmp_path / "slime", **scripts)

    async def go(folder, how):
        slime = {"directory": str(tmp_path / "slime"), "python": sys.executable, "ray_address": cluster}
        slime["arguments"] = ["--how", how]
        parameters = RunParameters.model_validate({"train": {"steps": 2}, "slime": slime})
        return await launch.run(parameters, base, {}, {}, tmp_path / "runs" / folder)

    return go


def freed_from(folder):
    """What the module says that it frees for a user who names a folder and no command."""
    command = [sys.executable, "-m", "slim_rl.slime.session", folder]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
@pytest.mark.parametrize(("how", "next_folder"), [("fails", "another"), ("waits", "first"), ("stuck", "another")])
def test_the_gpus_of_a_run_that_ended_are_free_for_the_next(run, tmp_path, how, next_folder):
    """It failed, was interrupted, or was killed with all of its processes and left an actor that does not answer."""

    async def go():
        first = asyncio.create_task(run("first", how))
        while how == "waits" and not (tmp_path / "runs/first/has-gpu").exists():
            await asyncio.sleep(0.1)
        if how == "waits":
            assert freed_from(tmp_path / "runs/another") == "", "its job is alive"
            first.cancel()
        with pytest.raises((UserError, asyncio.CancelledError)):
            await first
        async with asyncio.timeout(120):
            return await run(next_folder, "succeeds")

    assert asyncio.run(go()) == tmp_path / "runs" / next_folder / "hf/1"
