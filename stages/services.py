"""Checks that the seated services answer, before a stage loads anything heavy. Without services it does nothing."""

from slim_rl.config import load_config
from slim_rl.players.services import Services
from slim_rl.runtime.cli import run_stage


def main() -> None:
    config = load_config()
    services = Services(config.services, run="check", folder=None)
    services.check(name.removeprefix("service:") for name in sorted(config.players) if name.startswith("service:"))


if __name__ == "__main__":
    run_stage(main, __doc__)
