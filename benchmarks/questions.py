"""How well questions are found in people's messages, and how fast.

    python -m benchmarks.questions [--labels FILE ...] [--speed] [--errors]

Scores `find_questions` against labelled messages (tests/games/matching/messages; by default all parts), each part by
itself: whether a message asks anything, how many questions it asks, and how many of them ask for a score. Simple rules
on the same messages are beside the first. For the last two, questions that agree are counted message by message; 95%
intervals are by the bootstrap over games. `--speed` reads a million messages on one core.
"""

import argparse
import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slim_rl.games.matching.asking import find_questions
from slim_rl.games.matching.human import human_games, transcript
from slim_rl.games.matching.questions import read_clauses

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
Count = Callable[[Message], tuple[int, int]]
"""How many questions of a labelled message are found, and how many are labelled."""


def read_labelled(path: Path) -> list[Message]:
    """The labelled messages of a file; lines that are proposals or answers are left out."""
    lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if "text" in line]


def questions(message: Message) -> tuple[int, int]:
    return len(find_questions(message["text"], SIZE)), len(message["questions"])


def questions_for_scores(message: Message) -> tuple[int, int]:
    found = find_questions(message["text"], SIZE)
    return sum(bool(q.pairs) for q in found), sum(q.get("score", False) for q in message["questions"])


def f1(hits: float, found: float, labelled: float) -> float:
    return 2 * hits / (found + labelled) if found + labelled else float("nan")


def question_or_not(messages: Sequence[Message], says_yes: Callable[[str], bool]) -> tuple[float, float, float]:
    """F1, precision and recall over messages."""
    pairs = [(says_yes(m["text"]), bool(m["questions"])) for m in messages]
    hits, found, labelled = (sum(x) for x in zip(*((y and t, y, t) for y, t in pairs), strict=True))
    return f1(hits, found, labelled), hits / max(found, 1), hits / max(labelled, 1)


def counts(messages: Sequence[Message], count: Count) -> np.ndarray:
    """(games, 3): questions that agree, that are found, and that are labelled."""
    games = {game: i for i, game in enumerate(dict.fromkeys(m["game_id"] for m in messages))}
    sums = np.zeros((len(games), 3))
    for message in messages:
        found, labelled = count(message)
        sums[games[message["game_id"]]] += (min(found, labelled), found, labelled)
    return sums


def interval(sums: np.ndarray, resamples: int = 2000) -> tuple[float, float]:
    """95% interval of the F1; `sums` as from `counts`."""
    times = np.random.default_rng(0).multinomial(len(sums), np.full(len(sums), 1 / len(sums)), resamples)
    low, high = np.nanquantile([f1(*drawn) for drawn in times @ sums], [0.025, 0.975])
    return float(low), float(high)


def score(path: Path, show_errors: bool) -> None:
    messages = read_labelled(path)
    games, asked = len({m["game_id"] for m in messages}), sum(len(m["questions"]) for m in messages)
    print(f"{path.name}: {games} games, {len(messages)} messages, {asked} questions")
    for name, rule in {
        "find_questions": lambda text: bool(find_questions(text, SIZE)),
        **SIMPLE_RULES,
    }.items():
        f, precision, recall = question_or_not(messages, rule)
        print(f"  question or not: {name:24} F1 {f:.3f}  precision {precision:.3f}  recall {recall:.3f}")
    for name, count in (("all", questions), ("for scores", questions_for_scores)):
        sums = counts(messages, count)
        hits, found, labelled = sums.sum(0)
        low, high = interval(sums)
        print(
            f"  questions, {name:10} F1 {f1(hits, found, labelled):.3f} (95% interval over games {low:.3f} to {high:.3f}; "
            f"{labelled:.0f} labels, {found:.0f} found, {hits:.0f} agree)"
        )
    if show_errors:
        for message in messages:
            ours, theirs = questions(message)
            if ours != theirs:
                found = [question.text for question in find_questions(message["text"], SIZE)]
                print(f"  {message['text']!r}\n    labelled {message['questions']}\n    found    {found}")


def speed(count: int = 1_000_000) -> None:
    """Times `count` messages of people, of which no reading is kept."""
    turns = [turn for game in human_games(HUMAN) for _, turn in transcript(game)]
    texts = [turn.removeprefix("[message] ") for turn in turns if turn.startswith("[message]")]
    start = time.perf_counter()
    for i in range(count):
        if i % len(texts) == 0:
            read_clauses.cache_clear()
        find_questions(texts[i % len(texts)], SIZE)
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
        score(path, options.errors)


if __name__ == "__main__":
    main()
