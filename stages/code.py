"""Stage `code`: compose run.yaml and list what each other stage depends on, so that DVC runs those that have changed.

A list, data/code/STAGE.txt, has a line for each module, package, parameter and file; the difference of two lists says why
a stage runs. A run that composed run.yaml itself (`make repro`, a flow) is followed; otherwise params.yaml is.
"""

from slim_rl.runtime.cli import run_stage
from stages.dependencies import write_lists
from stages.workspace import composed_run


def main() -> None:
    with composed_run() as config:
        write_lists(config)


if __name__ == "__main__":
    run_stage(main, __doc__)
