"""DialOp's human-human games: the boards as games to play, and what people did on them as episodes."""

import json
from pathlib import Path

from slim_rl.errors import UserError
from slim_rl.games.matching.env import MatchingEnv
from slim_rl.games.matching.language import prompt
from slim_rl.games.matching.board import Board
