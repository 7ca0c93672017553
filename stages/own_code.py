"""Stage `own_code`: what identifies the user's own games, studies, estimators and filters, for DVC to compare."""

from pathlib import Path

from slim_rl.config import load_config
from slim_rl.runtime.cli import run_stage
from slim_rl.runtime.files import write_text
from slim_rl.runtime.work import fingerprint

OUTPUT = Path("data/own-code.txt")


def main() -> None:
    write_text(OUTPUT, fingerprint(*load_config().own_code()) + "\n")


if __name__ == "__main__":
    run_stage(main, __doc__)
