"""The Slurm script, with Ray itself."""

import os
import signal
import subprocess
import sys

from slim_rl.slime.folder import PARAMETERS
from slim_rl.slime.parameters import RunParameters
from slim_rl.slime.sbatch import sbatch
from tests.slime.support import ROOT, write_source

SRUN = """#!/bin/bash
# Slurm's srun on one machine: the options go, the command stays.
while [[ "$1" == -* ]]; do [[ "$1" == -w || "$1" == --exclude ]] && shift; shift; done
exec "$@"
"""
TRAINS = """
import pathlib, sys, time
import ray
ray.init()
saved = pathlib.Path(sys.argv[sys.argv.index("--save-hf") + 1].format(rollout_id=1))
for step in range(3):
    print("trained step", step, flush=True)
    time.sleep(0.5)
saved.mkdir(parents=True)
(saved / "model.safetensors.index.json").write_text(str(ray.cluster_resources().get("GPU")))
state = saved.parents[1] / "megatron/rollout/global_dataset_state_dict_1.pt"
state.parent.mkdir(parents=True)
state.touch()
"""


def test_the_slurm_script_brings_ray_up_and_runs_the_job(base, tmp_path):
    """With Ray itself; srun and scontrol stand in for Slurm, a script for SLIME."""
    write_source(tmp_path / "slime", **{"train.py": TRAINS})
    for name, text in {"srun": SRUN, "scontrol": "#!/bin/bash\nhostname\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    slime = {"directory": str(tmp_path / "slime"), "python": sys.executable, "gpus_per_node": 2}
    parameters = RunParameters.model_validate({"train": {"steps": 2}, "slime": slime})
    parameters.write(tmp_path / PARAMETERS)
    (tmp_path / "run.py").write_text(
        "import asyncio; from pathlib import Path; from slim_rl.slime import launch\n"
        "from slim_rl.slime.parameters import RunParameters\n"
        f"parameters = RunParameters.read(Path({PARAMETERS!r}))\n"
        "asyncio.run(launch.run(parameters, Path('.'), {}, {}, Path('run')))"
    )
    (tmp_path / "Makefile").write_text(f"repro:\n\t{sys.executable} run.py\n")
    script = sbatch(parameters, None, tmp_path)
    env = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "SLURM_JOB_NODELIST": "one",
        "SLURM_NNODES": "1",
    }
    shown = tmp_path / "shown"
    with shown.open("w") as output:
        job = subprocess.Popen(["bash", "-c", script], cwd=tmp_path, env=env, start_new_session=True, stdout=output)
    try:
        assert job.wait(300) == 0
    finally:
        os.killpg(job.pid, signal.SIGTERM)  # as Slurm does at the end of a job
    assert (tmp_path / "run/hf/1/model.safetensors.index.json").read_text() == "2.0"
    told = [line for line in shown.read_text().splitlines() if line.startswith("trained")]
    assert told == [f"trained step {step}" for step in range(3)]
