"""Stage `code`: compose run.yaml and list what each other stage depends on, so that DVC runs those that have changed.

A list, data/code/STAGE.txt, has a line for each module, package, parameter and file; the difference of two lists says why
a stage runs. A run that composed run.yaml itself (`make repro`, a flow) is followed; otherwise params.yaml is.
"""

from pathlib import Path

from slim_rl.runtime.cli import run_stage
from slim_rl.runtime.files import write_text
from stages.dependencies import SECTIONS, lines
from stages.workspace import composed_run

OUTPUT = Path("data/code")


def main() -> None:
    with composed_run() as config:
        for stage in SECTIONS:
            write_text(OUTPUT / f"{stage}.txt", "\n".join(lines(stage, config)) + "\n")


if __name__ == "__main__":
    run_stage(main, __doc__)
