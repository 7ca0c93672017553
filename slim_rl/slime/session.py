"""A job on a cluster that stays up, with SLIME 0.4: its GPUs are free again when it has ended.

    python -m slim_rl.slime.session FOLDER [COMMAND...]

From 0.4 on, SLIME's engines belong to detached Ray actors. After a failed or stopped job they keep their GPUs and take no
changed arguments. So this ends what dead jobs of FOLDER and the folders beside it left, runs COMMAND, and ends what that
leaves. Names and methods after github THUDM/slime 0.4.0: `slime/ray/serving.py`, `placement_group.py`,
`training_recovery.py`. It runs in SLIME's Python.
"""

import argparse
import hashlib
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

NAMESPACE = "slime-training-recovery"
STOP_SECONDS = 60
"""How long Ray gives a stopped job to end what it left."""
_DISPOSE_SECONDS = 20


def session(folder: Path) -> str:
    """What `--rollout-session-id` says for a run in this folder."""
    return str(folder)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m slim_rl.slime.session", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND")
    options = parser.parse_args()
    free(options.folder.parent.iterdir())
    if not options.command:
        return 0
    with subprocess.Popen(options.command) as process:
        # Ray sends it to the processes of a job that is stopped; this one has work left.
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        try:
            return process.wait()
        finally:
            free([options.folder], dead=False)


def free(folders: Iterable[Path], dead: bool = True) -> None:
    """End the actors of the runs in these folders.

    Args:
        dead: only those whose job has ended.
    """
    import ray
    from ray._private.state import jobs
    from ray.util.state import list_actors

    ours = {name: folder for folder in folders for name in _names(folder)}
    ray.init(address="auto", namespace=NAMESPACE, log_to_driver=False, logging_level="error")
    filters = [("ray_namespace", "=", NAMESPACE), ("state", "!=", "DEAD")]
    running = {job["JobID"] for job in jobs() if not job["IsDead"]}
    left = {
        actor.name: ray.get_actor(actor.name)
        for actor in list_actors(filters=filters, limit=10_000)
        if actor.name in ours and not (dead and actor.job_id in running)
    }
    disposed = [actor.dispose.remote() for name, actor in left.items() if name.endswith(":serving")]
    if disposed:  # a stuck one may not answer
        ray.wait(disposed, num_returns=len(disposed), timeout=_DISPOSE_SECONDS)
    for name, actor in left.items():
        print(f"Freeing what SLIME kept of the run in {ours[name]}.", flush=True)
        ray.kill(actor, no_restart=True)
    ray.shutdown()


def _names(folder: Path) -> tuple[str, str]:
    """Names of the rollout manager and of the owner of the engines."""
    name = "rollout:" + hashlib.sha256(f"explicit:{session(folder)}".encode()).hexdigest()
    return name, f"{name}:serving"


if __name__ == "__main__":
    sys.exit(main())
