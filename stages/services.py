"""Checks that the seated services answer, before a stage loads anything heavy. Without services it does nothing."""

from slim_rl.config import Config, load_config
from slim_rl.players.services import Services, ledgers
from slim_rl.runtime.cli import run_stage
from slim_rl.runtime.work import fingerprint


def main() -> None:
    config = load_config()
    services = Services(config.services, run="check", folder=None)
    services.check(name.removeprefix("service:") for name in sorted(config.players) if name.startswith("service:"))


def services_of(config: Config, stage: str, *sections: str) -> Services:
    """The services of a run of `stage`.

    The parameters in `sections`, or all, name the run, not its code: an edit resets no budget.
    """
    return Services(config.services, f"{stage}/{fingerprint(config.work_inputs(*sections))}", ledgers())


if __name__ == "__main__":
    run_stage(main, __doc__)
