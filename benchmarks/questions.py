"""How well questions are found and sorted in people's messages, and how fast.

    python -m benchmarks.questions [--labels FILE ...] [--speed] [--errors]

Scores `find_questions` against labelled messages (tests/analysis/questions; by default all parts that are
there), each part by itself, with the seed's simple rules beside it on the same messages. A message with at
least one question counts as positive for "question or not". For the kinds the questions of a message are
counted one by one: as many as agree are true positives, the F1 of each kind is that over all messages, and
the average is over the kinds that occur. `--speed` reads a million messages on one core.
"""

import argparse
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from slim_rl.analysis.questions import KINDS, find_questions

LABELS = Path(__file__).parents[1] / "tests" / "analysis" / "questions"
HUMAN = Path(__file__).parents[1] / "data" / "human" / "human_games.jsonl"
Kinds = Counter[str]
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


def f1(hits: int, found: int, labelled: int) -> float:
    return 2 * hits / (found + labelled) if found + labelled else float("nan")


def question_or_not(messages: Sequence[dict], says_yes: Callable[[str], bool]) -> tuple[float, float, float]:
    """F1, precision and recall over messages."""
    pairs = [(says_yes(m["text"]), bool(m["questions"])) for m in messages]
    hits, found, labelled = (sum(x) for x in zip(*((y and t, y, t) for y, t in pairs), strict=True))
    return f1(hits, found, labelled), hits / max(found, 1), hits / max(labelled, 1)


def kinds(messages: Sequence[dict]) -> dict[str, tuple[float, int]]:
    """F1 and the number of labels of each kind that occurs."""
    hits, found, labelled = Counter[str](), Counter[str](), Counter[str]()
    for message in messages:
        ours = Counter(q.kind for q in find_questions(message["text"]))
        theirs = Counter(q["kind"] for q in message["questions"])
        hits += ours & theirs
        found += ours
        labelled += theirs
    return {
        kind: (f1(hits[kind], found[kind], labelled[kind]), labelled[kind])
        for kind in KINDS
        if found[kind] + labelled[kind]
    }


def score(path: Path, show_errors: bool) -> None:
    messages = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    games, questions = len({m["game_id"] for m in messages}), sum(len(m["questions"]) for m in messages)
    print(f"{path.name}: {games} games, {len(messages)} messages, {questions} questions")
    rules = {"find_questions": lambda text: bool(find_questions(text)), **SIMPLE_RULES}
    for name, rule in rules.items():
        print(
            "  question or not: {:24} F1 {:.3f}  precision {:.3f}  recall {:.3f}".format(
                name, *question_or_not(messages, rule)
            )
        )
    by_kind = kinds(messages)
    for kind, (value, labels) in by_kind.items():
        print(f"  kind: {kind:10} F1 {value:.3f}  ({labels} labels)")
    print(f"  kinds on average: F1 {np.mean([value for value, _ in by_kind.values()]):.3f}")
    if show_errors:
        for message in messages:
            ours = [(q.kind, q.text) for q in find_questions(message["text"])]
            theirs = [(q["kind"], q["text"]) for q in message["questions"]]
            if Counter(k for k, _ in ours) != Counter(k for k, _ in theirs):
                print(f"  {message['text']!r}\n    labelled {theirs}\n    found    {ours}")


def speed(messages: Iterable[str], count: int = 1_000_000) -> None:
    texts = list(messages)
    start = time.perf_counter()
    for i in range(count):
        find_questions(texts[i % len(texts)])
    seconds = time.perf_counter() - start
    print(f"{count} messages, {len(texts)} different ones in turn, nothing kept: {seconds:.1f} s on one core")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--labels", type=Path, nargs="+", help="labelled messages, JSON lines")
    parser.add_argument("--errors", action="store_true", help="show the messages that were sorted wrongly")
    parser.add_argument("--speed", action="store_true", help="time a million messages instead")
    options = parser.parse_args()
    if options.speed:
        games = map(json.loads, HUMAN.read_text(encoding="utf-8").splitlines())
        speed(a["message"]["data"] for game in games for a in game["action_log"] if a["type"] == "message")
        return
    for path in options.labels or sorted(LABELS.glob("*.jsonl")):
        score(path, options.errors)


if __name__ == "__main__":
    main()
