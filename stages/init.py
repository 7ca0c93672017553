"""Make a folder to work in: params.yaml, the profiles, the pipeline for DVC and the deployments for Prefect.

What you add there, a module with a game or a study, is found by its name. Nothing that is there is overwritten.
"""

import shutil
import subprocess
import sys
from importlib.metadata import files
from pathlib import Path

from slim_rl.core.errors import UserError
from slim_rl.runtime.cli import argument_parser, told_in_a_sentence

WORKSPACE = ("params.yaml", "dvc.yaml", "prefect.yaml", "conf", "data/human")
_IGNORED = ".work/\n.venv/\n__pycache__/\nrun.yaml\n"


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("folder", type=Path, help="is made if it is not there")
    folder: Path = parser.parse_args().folder
    with told_in_a_sentence():
        make(folder)
        print(f"{folder} is ready. Next: cd {folder} && slim-rl run demo")


def make(folder: Path) -> None:
    """Raises UserError: the folder holds a workspace already, or cannot be written."""
    if taken := [name for name in WORKSPACE if (folder / name).exists()]:
        raise UserError(f"{folder} has {', '.join(taken)} already; name a new folder.")
    try:
        source = _source()
        for name in WORKSPACE:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (source / name).is_dir() else shutil.copyfile
            copy(source / name, folder / name)
        (folder / ".gitignore").write_text(_IGNORED)
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error}.") from None
    made = subprocess.run(
        [sys.executable, "-m", "dvc", "init", "--quiet", "--no-scm", "--force"],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    if made.returncode != 0:
        raise UserError(f"DVC could not be set up in {folder}: {made.stderr.strip()}")


def _source() -> Path:
    """The repository, or what the installed package has of it."""
    above = Path(__file__).parents[1]
    installed = [Path(str(file.locate())).parent for file in files("slim-rl") or () if file.match("slim_rl/dvc.yaml")]
    for folder in (above, above / "share/slim_rl", *installed):  # the second one where pip was given a --target
        if (folder / "dvc.yaml").is_file():
            return folder
    raise UserError("The package slim-rl is not installed as a whole; install it again with pip.")


if __name__ == "__main__":
    main()
