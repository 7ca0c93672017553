"""How well the reader of questions reads labelled messages, and how fast.

    python -m benchmarks.questions [--labels FILE ...] [--speed] [--errors]

Scores `asks_something` and `asked_cells` against the labelled messages in tests/games/matching/messages (by default all
parts), each part by itself. Of people's messages: whether one asks anything, beside simple rules, and whether it asks
for a score; 95% intervals are by the bootstrap over games. Of messages as models write them: whether the cells that one
asks for are read exactly. `--speed` reads a million messages on one core.
"""

import argparse
import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slim_rl.games.matching.human import human_games, transcript
from slim_rl.games.matching.names import REVIEWERS, SHORT_PAPERS
from slim_rl.games.matching.reader import _read, asked_cells, asks_something

LABELS = Path(__file__).parents[1] / "tests" / "games" / "matching" / "messages"
HUMAN = Path(__file__).parents[1] / "data" / "human" / "human_games.jsonl"
KEPT_APART = ("held_out", "unseen")
SIZE = 8
SIMPLE_RULES = {
    "question mark": lambda text: "?" in text,
    "question word anywhere": lambda text: bool(
        re.search(r"\b(?:what|which|who|where|when|why|how|do you|can you|could you)\b", text, re.I)
    ),
    '"score for"': lambda text: "score for" in text.lower(),
    "any of the three": lambda text: any(
        rule(text) for name, rule in SIMPLE_RULES.items() if name != "any of the three"
    ),
}
Message = dict[str, Any]


def read_labelled(path: Path) -> list[Message]:
    """The labelled messages of a file; lines that are proposals or answers are left out."""
    lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if "text" in line]


def asks_for_a_score(message: Message) -> tuple[bool, bool]:
    """Whether it is read to do so, and whether it is labelled so."""
    return bool(asked_cells(message["text"], SIZE)), any("score" in question for question in message["questions"])


def cells(text: str) -> str:
    """The cells that a message is read to ask for, written as in the labels."""
    return ", ".join(f"{REVIEWERS[r].split()[0]} {SHORT_PAPERS[p]}" for r, p in asked_cells(text, SIZE))


def f1(hits: float, found: float, labelled: float) -> float:
    return 2 * hits / (found + labelled) if found + labelled else float("nan")


def question_or_not(messages: Sequence[Message], says_yes: Callable[[str], bool]) -> tuple[float, float, float]:
    """F1, precision and recall over messages."""
    pairs = [(says_yes(m["text"]), bool(m["questions"])) for m in messages]
    hits, found, labelled = (sum(x) for x in zip(*((y and t, y, t) for y, t in pairs), strict=True))
    return f1(hits, found, labelled), hits / max(found, 1), hits / max(labelled, 1)


def counts(messages: Sequence[Message]) -> np.ndarray:
    """(games, 3): messages that ask for a score as read and labelled, as read, and as labelled."""
    games = {game: i for i, game in enumerate(dict.fromkeys(m["game_id"] for m in messages))}
    sums = np.zeros((len(games), 3))
    for message in messages:
        found, labelled = asks_for_a_score(message)
        sums[games[message["game_id"]]] += (found and labelled, found, labelled)
    return sums


def interval(sums: np.ndarray, resamples: int = 2000) -> tuple[float, float]:
    """95% interval of the F1; `sums` as from `counts`."""
    times = np.random.default_rng(0).multinomial(len(sums), np.full(len(sums), 1 / len(sums)), resamples)
    low, high = np.nanquantile([f1(*drawn) for drawn in times @ sums], [0.025, 0.975])
    return float(low), float(high)


def score_people(path: Path, messages: Sequence[Message], show_errors: bool) -> None:
    games, asking = len({m["game_id"] for m in messages}), sum(bool(m["questions"]) for m in messages)
    print(f"{path.name}: {games} games, {len(messages)} messages, {asking} of them ask")
    for name, rule in {"asks_something": asks_something, **SIMPLE_RULES}.items():
        f, precision, recall = question_or_not(messages, rule)
        print(f"  asks or not: {name:24} F1 {f:.3f}  precision {precision:.3f}  recall {recall:.3f}")
    sums = counts(messages)
    low, high = interval(sums)
    hits, found, labelled = sums.sum(0)
    print(
        f"  asks for a score: F1 {f1(hits, found, labelled):.3f} (95% interval over games {low:.3f} to {high:.3f}; "
        f"{labelled:.0f} labelled, {found:.0f} found, {hits:.0f} agree)"
    )
    for message in messages if show_errors else ():
        if asks_something(message["text"]) != bool(message["questions"]):
            print(f"  {message['text']!r}\n    labelled {message['questions']}")


def score_models(path: Path, messages: Sequence[Message], show_errors: bool) -> None:
    splits = [message.get("split", "tuning") for message in messages]
    for split in dict.fromkeys(splits):
        part = [message for message, of in zip(messages, splits, strict=True) if of == split]
        wrong = [message for message in part if cells(message["text"]) != message["asked"]]
        right = len(part) - len(wrong)
        print(f"{path.name}, {split}: cells read exactly in {right} of {len(part)} messages ({right / len(part):.3f})")
        for message in wrong if show_errors and split == "tuning" else ():
            print(f"  {message['text']!r}\n    labelled {message['asked']}\n    read     {cells(message['text'])}")


def speed(count: int = 1_000_000) -> None:
    """Times `count` messages of people, of which no reading is kept."""
    turns = [turn for game in human_games(HUMAN) for _, turn in transcript(game)]
    texts = [turn.removeprefix("[message] ") for turn in turns if turn.startswith("[message]")]
    start = time.perf_counter()
    for i in range(count):
        if i % len(texts) == 0:
            _read.cache_clear()
        asked_cells(texts[i % len(texts)], SIZE)
    seconds = time.perf_counter() - start
    print(f"{count} messages, {len(texts)} different ones in turn: {seconds:.1f} s on one core")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=Path, nargs="+", help="labelled messages, JSON lines")
    parser.add_argument("--errors", action="store_true", help="show the messages that are read wrongly")
    parser.add_argument("--speed", action="store_true", help="time a million messages instead")
    options = parser.parse_args()
    if options.speed:
        speed()
        return
    paths = options.labels or sorted(LABELS.glob("*.jsonl"))
    if options.errors and (apart := [path.name for path in paths if path.stem in KEPT_APART]):
        parser.error(
            f"--errors would show messages of {' and '.join(apart)}, which are kept apart; name others by --labels."
        )
    for path in paths:
        messages = read_labelled(path)
        (score_models if "asked" in messages[0] else score_people)(path, messages, options.errors)


if __name__ == "__main__":
    main()
