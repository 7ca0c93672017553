"""The rules of the matching game: what a turn is, what each player reads, and what it earns.

Rules after DialOp (Lin, Tomlin, Andreas, Eisner 2023, arXiv 2305.20076; github jlin816/dialop). Player 1
starts, players alternate, a rejection is a turn. Unlike DialOp's text environment, names in proposals
are resolved against the full lists and rows of the board are reviewers.
"""

import re
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from slim_rl.core.game import TextGame
from slim_rl.games.matching.board import TOP, Board, assignment_value, expected, optimal_assignment
from slim_rl.games.matching.names import REVIEWERS, SHORT_PAPERS, InvalidProposal, format_proposal, parse_proposal
from slim_rl.games.matching.reader import asked_cells, is_malformed, told_numbers

SEATS: tuple[str, ...] = ("player-1", "player-2")
Act = Literal["message", "propose", "accept", "reject"]

_INSTRUCTIONS = """\
You and a partner assign {size} papers to {size} reviewers, one paper each. Every reviewer has a score \
for every paper, and both of you earn the sum of the scores of the pairs you agree on. Each of you sees \
only some of the scores{scale}; the others are marked "?". Take turns. A turn is one of
[message] and what you want to say
[propose] Proposal: and then a line "Paper: Reviewer" for every paper
[accept] or [reject], to answer a proposal; accepting ends the game.
"""
_ENDS_SOON = "Soon after the last score that can be told, the game ends without a reward.\n"
_SHORT = "Assign {size} papers.\n"
ROUGH_MARK = "±5"
"""Behind the middle of the ten scores that a cell can have by what a player knows roughly."""
_SIZE = re.compile(r"[Aa]ssign (\d) papers")
_BOARD = "You see:\n"
_CELL = re.compile(rf"^({'|'.join(REVIEWERS)}) - ({'|'.join(SHORT_PAPERS)}): (\d+)$", re.MULTILINE)
_ROUGH_CELL = re.compile(_CELL.pattern.replace("$", rf"{re.escape(ROUGH_MARK)}$"), re.MULTILINE)
_PRIVATE_SCALE = ", multiplied by a private factor of your own"
MUST_ANSWER = "You can output one of these choices: [accept] or [reject]"


class Limits(NamedTuple):
    """What asking costs in a game, and how long the game may last."""

    max_turns: int
    """Turns of both players together, illegal ones included. Then the game ends without a reward."""
    patience: int | None = None
    """A shy partner answers about at most this many cells; None: about any number."""
    price: int = 0
    """Percent of the best sum that each cell asked for costs the one who asks."""
    turns_told: bool = True
    """Whether the players are told how many turns are left."""

    @property
    def of_asking(self) -> bool:
        """Whether asking costs anything."""
        return self.patience is not None or self.price > 0


class Turn(NamedTuple):
    act: Act
    content: str


class InvalidTurn(ValueError):
    """A turn that the rules forbid; the speaker is told the message."""


def opening(board: Board, player: int, limits: Limits, short: bool = False) -> str:
    """What a player, 0 or 1, reads first.

    Args:
        short: leave the rules out, for a model that has learnt them by imitation.
    """
    numbers, scale = board.numbers(player), _PRIVATE_SCALE if board.private else ""
    shown = np.where(numbers < 0, "?", numbers.astype(str))
    if player == 0 and board.rough is not None:
        scale += f", or knows them roughly ({ROUGH_MARK})"
        shown = np.where(board.rough, np.char.add(expected(board.bounds(0)).astype(str), ROUGH_MARK), shown)
    ends_soon = limits.patience is not None and not limits.turns_told
    rules = (_SHORT if short else _INSTRUCTIONS + _ENDS_SOON * ends_soon).format(size=board.size, scale=scale)
    cells = (f"{REVIEWERS[r]} - {SHORT_PAPERS[p]}: {text}" for (r, p), text in np.ndenumerate(shown))
    return rules + _BOARD + "\n".join(cells) + "\n" + left(limits, partner=player == 1)


def left(limits: Limits, turns: int = 0, asked: int = 0, partner: bool = False) -> str:
    """What a player still has: turns, and what asking costs it or how many scores its partner still tells.

    Args:
        turns: that both players have taken.
        asked: cells that were asked for.
        partner: whether it is the second player, whose patience it is.
    """
    told = [f"Turns left: {(limits.max_turns - turns + 1) // 2}"] if limits.turns_told else []
    if limits.price:
        told.append(f"Price of a score in percent: {limits.price}")
    if limits.patience is not None:
        told.append(f"Scores {'you tell' if partner else 'left'}: {max(0, limits.patience - asked)}")
    return "\n".join(told)


def read_prompt(text: str) -> np.ndarray | None:
    """(N, N) int: what a player sees by a text that begins with its `opening`, -1 where it sees nothing; None from any
    other text."""
    return _read(text, _CELL)


def read_rough(text: str) -> np.ndarray | None:
    """(N, N) int: the middles of the scores that it knows roughly, -1 elsewhere."""
    return _read(text, _ROUGH_CELL)


def _read(text: str, cell: re.Pattern[str]) -> np.ndarray | None:
    size, opens, board = _SIZE.search(text), *text.partition(_BOARD)[1:]
    if not size or not opens:
        return None
    numbers = np.full((int(size[1]), int(size[1])), -1)
    for reviewer, paper, number in cell.findall(board):
        numbers[REVIEWERS.index(reviewer), SHORT_PAPERS.index(paper)] = int(number)
    return numbers


def parse_turn(text: str) -> Turn:
    """Split a turn into its tag and the rest.

    Raises:
        InvalidTurn: there is no tag, an unknown one, or an empty message.
    """
    match = re.match(r"\s*\[(message|propose|accept|reject)\](.*)\Z", text, re.DOTALL | re.IGNORECASE)
    if match is None:
        raise InvalidTurn("A turn begins with [message], [propose], [accept] or [reject].")
    turn = Turn(match[1].lower(), match[2].strip())  # type: ignore[arg-type]
    if turn.act in ("message", "propose") and not turn.content:
        raise InvalidTurn(f"Nothing stands after [{turn.act}].")
    return turn


@dataclass(frozen=True)
class View:
    """What one player knows from the start."""

    mask: np.ndarray
    """(N, N) bool: the cells it sees."""
    numbers: np.ndarray
    """(N, N) int: what it reads, scores times its scale, rounded down; -1 where it sees nothing."""
    bounds: np.ndarray
    """(2, N, N) int: the least and the largest score that each cell can have by what it knows."""
    scale: float


@dataclass
class _Asking:
    """What one player has asked and learned."""

    learned: np.ndarray
    """(N, N) bool: cells whose score the other player gave when asked."""
    asked: set[tuple[int, int]] = field(default_factory=set)
    pending: list[tuple[int, int]] = field(default_factory=list)
    told: set[tuple[int, int]] = field(default_factory=set)
    """Cells that the other player does not see, and whose score this one gave it, asked or not."""
    cells: int = 0
    """Cells asked for, each counted once in a message."""
    useful: int = 0
    """Cells asked for that it neither sees nor asked for before."""
    messages: int = 0
    malformed: int = 0
    """Malformed messages; see `slim_rl.games.matching.reader.is_malformed`."""
    errors: int = 0


class MatchingGame(TextGame):
    """One game on one board.

    Args:
        short: the prompts leave out the rules.
    """

    seats = SEATS

    def __init__(self, board: Board, limits: Limits, game_id: str = "", short: bool = False):
        self.board, self.limits, self.game_id = board, limits, game_id
        self.turns = 0
        self.proposal: tuple[int, ...] | None = None
        self.accepted: tuple[int, ...] | None = None
        self._speaker = 0
        self._unseen = [[opening(board, player, limits, short)] for player in (0, 1)]
        self._asking = [_Asking(np.zeros_like(board.masks[0])) for _ in SEATS]

    @property
    def turn(self) -> str | None:
        return None if self.accepted is not None or self.truncated else SEATS[self._speaker]

    @property
    def truncated(self) -> bool:
        return self.accepted is None and self.turns >= self.limits.max_turns

    def view(self, seat: str) -> View:
        player = SEATS.index(seat)
        board = self.board
        return View(board.masks[player], board.numbers(player), board.bounds(player), float(board.scales[player]))

    def bounds(self, seat: str) -> np.ndarray:
        """(2, N, N) int: the least and the largest score that each cell can have by what a player sees and was told when
        it asked."""
        return np.where(self.known(seat), self.board.table, self.board.bounds(SEATS.index(seat)))

    def known(self, seat: str) -> np.ndarray:
        """(N, N) bool: the cells that a player sees, and those whose score it was told when it asked."""
        player = SEATS.index(seat)
        return self.board.masks[player] | self._asking[player].learned

    def question_count(self, seat: str) -> int:
        """How many cells a player has asked for, each counted once in a message."""
        return self._asking[SEATS.index(seat)].cells

    def read(self, seat: str) -> str:
        player = SEATS.index(seat)
        unseen = self._unseen[player]
        if player == 0 and self.turns and unseen and self.limits.of_asking and self.proposal is None:
            unseen.append(left(self.limits, self.turns, self._asking[0].cells))
        text = "\n".join(unseen)
        unseen.clear()
        return text

    def move(self, text: str) -> None:
        if self.turn is None:
            raise ValueError("This game is over.")
        self.turns += 1
        try:
            act, content = parse_turn(text)
            if self.proposal is not None and act in ("message", "propose"):
                raise InvalidTurn("A proposal was made. Answer it with [accept] or [reject].")
            if self.proposal is None and act in ("accept", "reject"):
                raise InvalidTurn("There is no proposal to answer.")
            proposal = parse_proposal(content, self.board.size) if act == "propose" else ()
        except (InvalidTurn, InvalidProposal) as error:
            self._asking[self._speaker].errors += 1
            self._unseen[self._speaker].append(f"Error: {error}")
            return
        match act:
            case "message":
                self.say(self._speaker, content)
            case "propose":
                self.propose(self._speaker, proposal)
            case _:
                self.answer(self._speaker, act == "accept")

    # What the three kinds of turn do. A log of people's games is applied through these as well. They do not check
    # whose turn it is, because people do not always wait for theirs.

    def say(self, player: int, text: str) -> None:
        self._count_questions(player, text)
        self._count_answers(1 - player, text)
        self._count_told(player, text)
        self._hand_over(player, f"Partner: [message] {text}")

    def propose(self, player: int, assignment: tuple[int, ...]) -> None:
        self.proposal = assignment
        self._hand_over(player, f"Partner: [propose] {format_proposal(assignment)}\n{MUST_ANSWER}")

    def answer(self, player: int, accept: bool) -> None:
        if accept:
            self.accepted = self.proposal
        self.proposal = None
        self._hand_over(player, "Partner: [accept]" if accept else "Partner: [reject]")

    def _hand_over(self, player: int, text: str) -> None:
        self._unseen[1 - player].append(text)
        self._speaker = 1 - player

    @property
    def quality(self) -> float:
        """Value of the accepted assignment over that of the best one when both pool what they see; 0 without one."""
        if self.accepted is None:
            return 0.0
        return assignment_value(self.board.table, np.array(self.accepted)) / self.board.best_assignment_reward

    def rewards(self) -> dict[str, float]:
        """The quality less the price of the cells that a player asked for."""
        costs = (asking.cells * self.limits.price / 100 for asking in self._asking)
        return {seat: self.quality - cost for seat, cost in zip(SEATS, costs, strict=True)}

    def metrics(self) -> dict[str, float]:
        limits = self.limits
        metrics: dict[str, float] = {
            "turn_count": self.turns,
            "quality": self.quality,
            "turn_limit": limits.max_turns,
            "price": limits.price,
        }
        if limits.patience is not None:
            metrics["patience"] = limits.patience
        for player, (seat, asking) in enumerate(zip(SEATS, self._asking, strict=True)):
            bounds = self.board.bounds(player)
            metrics |= {
                f"{seat}.question_count": asking.cells,
                f"{seat}.useful_cells": asking.useful,
                f"{seat}.answers": int(asking.learned.sum()),
                f"{seat}.message_count": asking.messages,
                f"{seat}.malformed_count": asking.malformed,
                f"{seat}.told": len(asking.told),
                f"{seat}.errors": asking.errors,
                f"{seat}.unknown_cells": int((bounds[1] - bounds[0] == TOP).sum()),  # known not even roughly
                f"{seat}.own_view": self._oracle(bounds),
                f"{seat}.oracle_given_information": self._oracle(self.bounds(seat)),
            }
        return metrics

    def _oracle(self, bounds: np.ndarray) -> float:
        """Normalised reward of the best assignment for a player that knows this of the scores, (2, N, N)."""
        best = optimal_assignment(expected(bounds))
        return assignment_value(self.board.table, best) / self.board.best_assignment_reward

    def _count_questions(self, player: int, text: str) -> None:
        asking, mask = self._asking[player], self.board.masks[player]
        asking.messages += 1
        asking.malformed += is_malformed(text, self.board.size)
        asking.pending = asked_cells(text, self.board.size)
        asking.cells += len(asking.pending)
        asking.useful += sum(not mask[pair] and pair not in asking.asked for pair in set(asking.pending))
        asking.asked.update(asking.pending)

    def _count_told(self, player: int, text: str) -> None:
        """Count the scores that `player` gives and the other one does not see."""
        mine, theirs, numbers = self.board.masks[player], self.board.masks[1 - player], self.board.numbers(player)
        for pair, number in told_numbers(text, self.board.size):
            if mine[pair] and not theirs[pair] and str(numbers[pair]) == number:
                self._asking[player].told.add(pair)

    def _count_answers(self, player: int, reply: str) -> None:
        """Count what `player` learns from the reply to its last question: the cells whose number is in the reply."""
        asking, teller, numbers = self._asking[player], self.board.masks[1 - player], self.board.numbers(1 - player)
        words = re.findall(r"\d+", reply)
        for pair in asking.pending:
            if teller[pair] and str(numbers[pair]) in words:
                asking.learned[pair] = ~self.board.masks[player][pair]
        asking.pending = []
