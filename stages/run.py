"""Run the pipeline with the parameters of params.yaml, a profile of conf/ and single ones, composed in run.yaml.

From below: the profile that params.yaml names, params.yaml, PROFILE, which takes the place of the first, and --set. A
profile may name another one in the same way. The last that has `games` says which are played.

make repro PROFILE=NAME SET="NAME=VALUE NAME=VALUE" is short for this. Killed and started again with the same arguments,
a run goes on. So does an experiment, because its unfinished work and paid replies are in this workspace; one that has
finished is not run again.
"""

import argparse
import hashlib
import re
import shlex
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from slim_rl.config import RUN
from slim_rl.core.errors import UserError
from slim_rl.runtime.cli import argument_parser, told_in_a_sentence
from slim_rl.runtime.code import WORK_VARIABLE, work_root
from slim_rl.runtime.process import end
from stages.workspace import composed_run, environment, grace_seconds, sole_run


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("profile", nargs="?", help="the name of a file in conf/, without .yaml")
    parser.add_argument(
        "--set", action="extend", default=[], type=settings, metavar="NAME=VALUE",
        help="parameters by dotted name, such as 'train.steps=10 seed=1'; may be repeated",
    )  # fmt: skip
    parser.add_argument("--experiment", metavar="NAME", help="run in a copy of the workspace, as a DVC experiment")
    parser.add_argument("--dvc", default="", metavar="ARGUMENTS", help="for `dvc repro`, such as --dvc='--force train'")
    options = parser.parse_args()
    name = options.experiment
    verb = ["exp", "run", "--temp", "--name", name] if name else ["repro"]
    with told_in_a_sentence():
        check_git()
    parameters = composed_run(options.profile, dict(options.set))
    with told_in_a_sentence(), sole_run(print) as lock, parameters as config:
        if name and finished(name):
            print(
                f"The experiment {name} has finished already. To run it again, remove it first: dvc exp remove {name}"
            )
            return
        command = [sys.executable, "-m", "dvc", *verb, *shlex.split(options.dvc)]
        variables = {**environment(), WORK_VARIABLE: str(work_root().absolute())}  # not in an experiment's own folder
        # In its own session, so that Ctrl-C reaches it through `end`, which gives it time.
        process = subprocess.Popen(command, env=variables, pass_fds=[lock], start_new_session=True)
        try:
            code = process.wait()
        finally:
            end(process, grace_seconds(config))
    if not (code or name or options.dvc):
        print("The report is reports/report.html.")
    sys.exit(code)


def check_git() -> None:
    """Raises UserError: DVC's workspace is in no git repository, and DVC does not know that this is meant."""
    here, dvc = Path.cwd(), Path(".dvc")
    if any((folder / ".git").exists() for folder in (here, *here.parents)) or not dvc.is_dir():
        return
    if not any("no_scm" in file.read_text(encoding="utf-8", errors="replace") for file in dvc.glob("config*")):
        raise UserError(
            f"{here} is no git repository, which DVC expects; `dvc config --local core.no_scm true` lets it work without "
            "one (but for --experiment), or `git init` makes one."
        )


def finished(experiment: str) -> bool:
    """Whether DVC has the experiment.

    Raises:
        UserError: DVC has one of this name with other code or parameters than the workspace has now; or git has no commit.
    """
    if not shutil.which("git"):
        raise UserError("An experiment needs git, which is not installed; without --experiment a run does not need it.")
    git = partial(subprocess.run, capture_output=True, text=True)
    asked = git(["git", "rev-parse", "HEAD"])
    if asked.returncode != 0:
        raise UserError(f"An experiment needs a commit to start from, but git says: {' '.join(asked.stderr.split())}")
    head = asked.stdout.strip()
    ref = f"refs/exps/{head[:2]}/{head[2:]}/{experiment}"  # as DVC names it
    if git(["git", "rev-parse", "--verify", ref]).returncode != 0:
        return False
    # DVC writes the first three; no run reads the others, and what params.yaml and conf/ say stands in run.yaml.
    beside = ["dvc.lock", "reports", "*.gitignore", "docs", "tests", "*.md", "conf", "Makefile", "params.yaml"]
    changed = git(["git", "diff", "--quiet", ref, "--", ".", *(f":!{path}" for path in beside)]).returncode != 0
    lock = yaml.safe_load(git(["git", "show", f"{ref}:dvc.lock"]).stdout) or {}
    outs = {out["path"]: out["md5"] for out in lock.get("stages", {}).get("code", {}).get("outs", ())}
    if changed or outs.get(str(RUN)) != hashlib.md5(RUN.read_bytes()).hexdigest():
        raise UserError(
            f"There is an experiment {experiment} with other code or parameters; name this one otherwise, or remove "
            f"that one first: dvc exp remove {experiment}"
        )
    return True


def settings(text: str) -> list[tuple[str, Any]]:
    """Names and values. A space separates them only before another `NAME=`, so a value may have spaces: [4, 8]."""
    pairs = []
    for part in re.split(r"\s+(?=[A-Za-z_][\w.:/-]*=)", text.strip()):
        name, equals, value = part.partition("=")
        if not equals:
            raise argparse.ArgumentTypeError(f"{part!r} is not NAME=VALUE")
        try:
            pairs.append((name, yaml.safe_load(value)))
        except yaml.YAMLError:
            raise argparse.ArgumentTypeError(f"{value!r} is not YAML") from None
    return pairs


if __name__ == "__main__":
    main()
