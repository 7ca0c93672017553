"""Show how the stage `train` runs SLIME: its command, or a Slurm script for the whole pipeline.

    python -m stages.slime [PROFILE] --dry-run     # the command, ready to be pasted
    python -m stages.slime [PROFILE] --sbatch | sbatch
    python -m stages.slime [PROFILE] --sbatch --container-image slimerl/slime:latest | sbatch    # Pyxis
    python -m stages.slime [PROFILE] --sbatch --apptainer slime.sif | sbatch

The dry run needs the outputs of the stages `games` and `base_model`.
"""

import shlex
from pathlib import Path

from slim_rl.config import Config, checked, composed
from slim_rl.games import load_games
from slim_rl.rollout.tasks import TaskFile, tasks_path
from slim_rl.runtime.cli import argument_parser, told_in_a_sentence
from slim_rl.runtime.code import work_root
from slim_rl.slime.command import shown
from slim_rl.slime.folder import prepare
from slim_rl.slime.parameters import RunParameters
from slim_rl.slime.sbatch import sbatch
from slim_rl.slime.source import check_source
from stages.train import BASE, GAMES


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("profile", nargs="?", help="the name of a file in conf/, without .yaml")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--dry-run", action="store_true", help="print the command, with a folder of its own")
    what.add_argument("--sbatch", action="store_true", help="print a Slurm script")
    container = parser.add_mutually_exclusive_group()
    container.add_argument("--container-image", metavar="IMAGE", help="run the Slurm job in this image, by Pyxis")
    container.add_argument("--apptainer", metavar="IMAGE", help="run the Slurm job in this image, by Apptainer")
    options = parser.parse_args()
    with told_in_a_sentence():
        config = checked(composed(options.profile), options.profile or "params.yaml")
        if options.sbatch:
            containers = {"pyxis_image": options.container_image, "apptainer_image": options.apptainer}
            print(sbatch(RunParameters.of(config), options.profile, **containers))
        else:
            print(dry_run(config, (work_root() / "slime/dry-run").resolve()))


def dry_run(config: Config, folder: Path) -> str:
    """Write what SLIME reads to `folder` and return the command."""
    games, parameters = load_games(config.games, config.seed), RunParameters.of(config)
    check_source(parameters.slime)
    train, held_out = (
        {name: TaskFile(tasks_path(GAMES, game, purpose), game) for name, game in games.items()}
        for purpose in ("train", "evaluate")
    )
    prepare(parameters, train, held_out, folder)
    return shlex.join(shown(parameters, BASE.resolve(), folder)).replace(" --", " \\\n    --")


if __name__ == "__main__":
    main()
