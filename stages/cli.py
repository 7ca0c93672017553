"""Everything that the pipeline can be asked to do, as one command; `slim-rl COMMAND --help` says more.

Exit codes: 0 done; 1 a sentence on standard error says what is wrong, or that it was interrupted and the same command
goes on; 2 unknown arguments. `slim-rl run` ends with DVC's code, 255, where a stage failed.
"""

import os
import runpy
import sys

from slim_rl.runtime.cli import argument_parser

COMMANDS = {
    "init": ("stages.init", "a folder to work in: parameters, profiles, pipeline"),
    "run": ("stages.run", "the pipeline, from the games to the report"),
    "games": ("stages.listing", "the games, and who can play them"),
    "profiles": ("stages.listing", "the experiments in conf/"),
    "params": ("stages.listing", "all parameters with their defaults"),
    "estimate": ("stages.estimate", "what a run will cost: calls, tokens, dollars, hours"),
    "report": ("stages.analyze", "the report again, from the episodes that are there"),
    "compare": ("stages.compare", "a page on several runs"),
    "serve": ("flows.serve", "a local Prefect server with the deployments of prefect.yaml"),
    "clean": ("stages.clean", "what runs have left in .work"),
    "doctor": ("stages.doctor", "what this machine has, what is missing, what would be chosen"),
}


def main() -> None:
    command = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if command not in COMMANDS:
        width = max(map(len, COMMANDS))
        parser = argument_parser(__doc__)
        parser.epilog = "\n".join(f"  {name:{width}}  {about}" for name, (_, about) in COMMANDS.items())
        parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of those below")
        parser.parse_args([command])
    module, _ = COMMANDS[command]
    first = [command] if module == "stages.listing" else []
    sys.path.insert(0, os.getcwd())  # where games and agents of the user's own are
    sys.argv = [f"slim-rl {command}", *first, *sys.argv[2:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
