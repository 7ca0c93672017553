"""Serve the games of a file of parameters over the Open Reward Standard, so that other trainers can train on them.

    python -m stages.serve --parameters params.yaml --port 8080

There is no authentication: listen to other machines only in a network you trust. See docs/tools.md.
"""

import asyncio
from pathlib import Path

from slim_rl.config import PATH, load_config
from slim_rl.rollout.serve import Server, listen, served_games
from slim_rl.runtime.cli import argument_parser, told_in_a_sentence


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--parameters", type=Path, default=PATH)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080, help="0 takes a free one")
    options = parser.parse_args()
    with told_in_a_sentence():
        config = load_config(options.parameters)
        server = Server(served_games(config.games, config.seed), config.seed)
        asyncio.run(listen(server.app(), options.host, options.port))


if __name__ == "__main__":
    main()
