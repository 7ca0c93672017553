"""A Slurm script for the whole pipeline."""

import math
import shlex
from pathlib import Path

from slim_rl.slime.command import ROOT, ray
from slim_rl.slime.parameters import RunParameters

_SCRIPT = r"""#!/bin/bash
#SBATCH --job-name=slim-rl
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={gpus}
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail
within() {{  # SECONDS WHAT COMMAND...: wait until the command succeeds
    local until=$((SECONDS + $1)) what=$2
    until "${{@:3}}" >/dev/null 2>&1; do
        if [ "$SECONDS" -ge "$until" ]; then echo "error: $what did not come up" >&2; exit 1; fi
        sleep 2
    done
}}
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# An address that the other nodes can use. On the node itself its name often means 127.0.0.1.
address=$(getent ahostsv4 "$head" | awk '$1 !~ /^127\./ {{ print $1; exit }}')
address=${{address:-$(hostname -I | awk '{{ print $1 }}')}}
on_head=(srun --overlap --nodes=1 --ntasks=1 -w "$head" {container})
ray=({ray})
ray_start=("${{ray[@]}}" start --num-gpus={gpus} --disable-usage-stats --block)
"${{on_head[@]}}" "${{ray_start[@]}}" --head --node-ip-address="$address" --port=6379 \
    --dashboard-host=0.0.0.0 --dashboard-port=8265 &
export RAY_API_SERVER_ADDRESS="http://$address:8265"
within 900 "Ray's head" "${{on_head[@]}}" "${{ray[@]}}" job list
if [ "$SLURM_NNODES" -gt 1 ]; then
    srun --overlap --nodes=$((SLURM_NNODES - 1)) --ntasks=$((SLURM_NNODES - 1)) --exclude "$head" {container} \
        "${{ray_start[@]}}" --address="$address:6379" &
fi
all_nodes() {{
    [ "$("${{on_head[@]}}" "${{ray[@]}}" list nodes --filter state=ALIVE --format json | grep -c '"node_id"')" -ge "$SLURM_NNODES" ]
}}
within 900 "Ray on all nodes" all_nodes
"${{on_head[@]}}" make -C {root} repro PROFILE={profile}
"""


def sbatch(
    parameters: RunParameters,
    profile: str | None,
    root: Path = ROOT,
    pyxis_image: str | None = None,
    apptainer_image: str | None = None,
) -> str:
    """A script that starts Ray on all nodes of the job and runs the pipeline; all of it ends with the job. A preempted
    job is queued again, and continues.

    Args:
        pyxis_image, apptainer_image: a container for all of it, by Pyxis or Apptainer. `root` is the same inside.
    """
    slime, place = parameters.slime, shlex.quote(str(root))
    container = ""
    if pyxis_image:
        container = f"--container-image={shlex.quote(pyxis_image)} --container-mounts={place}:{place}"
    elif apptainer_image:
        container = f"apptainer exec --nv --bind {place}:{place} {shlex.quote(apptainer_image)}"
    return _SCRIPT.format(
        nodes=slime.nodes + math.ceil((slime.rollout_gpus or 0) / slime.gpus_per_node),
        gpus=slime.gpus_per_node,
        container=container,
        ray=shlex.join(ray(slime)),
        root=place,
        profile=profile or "",
    )
