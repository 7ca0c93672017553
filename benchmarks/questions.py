"""How well questions are found and sorted in people's messages, and how fast.

    python -m benchmarks.questions [--labels FILE ...] [--speed] [--errors]

Scores `find_questions`, which reads a message alone or with the turns before it, against labelled messages
(tests/analysis/questions; by default all parts of people's games), each part by itself, with the seed's
simple rules beside them on the same messages. A message with at least one question counts as
positive for "question or not". For the kinds the questions of a message are counted one by one: as many as
agree are true positives, the F1 of each kind is that over all messages, and the average is over the kinds
that occur; its 95% interval is by the bootstrap over games. `--speed` reads a million messages on one core.
"""

import argparse
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from slim_rl.analysis import questions
from slim_rl.analysis.kinds import KINDS
from slim_rl.analysis.questions import classify, find_questions
from slim_rl.games.matching.human import human_games, transcript
from slim_rl.games.matching.rules import SEATS

LABELS = Path(__file__).parents[1] / "tests" / "analysis" / "questions"
HUMAN = Path(__file__).parents[1] / "data" / "human" / "human_games.jsonl"
KEPT_APART = ("held_out", "unseen")
Finder = Callable[[dict], Sequence[questions.Question]]
"""The questions that it finds in a labelled message."""
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


def read_labelled(path: Path) -> list[dict]:
    """The labelled messages of a file, each with `turns`: those before it, the last one first.

    They are told by the file's own lines if it has those that are no messages, else by the human games.
    """
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if not any("action" in line for line in lines):
        return [line | {"turns": _human_turns()[line["game_id"]][: line["index"]][::-1]} for line in lines]
    turns: dict[str | int, list[str]] = {}
    messages = []
    for line in lines:
        line.setdefault("game_id", line.get("dialogue"))
        said = turns.setdefault(line["game_id"], [])
        if "text" in line:
            messages.append(line | {"turns": said[::-1]})
        said.append(line.get("action") or f"[message] {line['text']}")
    return messages


@cache
def _human_turns() -> dict[int, list[str]]:
    return {g["game_state"]["game_id"]: [turn for _, turn in transcript(g)] for g in human_games(HUMAN)}


def alone(message: dict) -> Sequence[questions.Question]:
    return find_questions(message["text"])


def in_context(message: dict) -> Sequence[questions.Question]:
    return find_questions(message["text"], turns=message["turns"])


FINDERS: dict[str, Finder] = {"a message alone": alone, "in its game": in_context}


def f1(hits: float, found: float, labelled: float) -> float:
    return 2 * hits / (found + labelled) if found + labelled else float("nan")


def question_or_not(messages: Sequence[dict], says_yes: Callable[[dict], bool]) -> tuple[float, float, float]:
    """F1, precision and recall over messages."""
    pairs = [(says_yes(m), bool(m["questions"])) for m in messages]
    hits, found, labelled = (sum(x) for x in zip(*((y and t, y, t) for y, t in pairs), strict=True))
    return f1(hits, found, labelled), hits / max(found, 1), hits / max(labelled, 1)


def counts(messages: Sequence[dict], find: Finder) -> np.ndarray:
    """(games, kinds, 3): questions that are found rightly, found, and labelled."""
    games = {game: i for i, game in enumerate(dict.fromkeys(m["game_id"] for m in messages))}
    sums = np.zeros((len(games), len(KINDS), 3))
    for message in messages:
        ours = Counter(q.kind for q in find(message))
        theirs = Counter(q["kind"] for q in message["questions"])
        for i, kind in enumerate(KINDS):
            both = min(ours[kind], theirs[kind])
            sums[games[message["game_id"]], i] += (both, ours[kind], theirs[kind])
    return sums


def kinds(sums: np.ndarray) -> np.ndarray:
    """F1 of each kind, NaN where it does not occur; `sums` (kinds, 3)."""
    return np.array([f1(*row) for row in sums])


def interval(sums: np.ndarray, resamples: int = 2000) -> tuple[float, float]:
    """95% interval of the average F1 over kinds; `sums` as from `counts`."""
    times = np.random.default_rng(0).multinomial(len(sums), np.full(len(sums), 1 / len(sums)), resamples)
    drawn = np.einsum("rg,gkc->rkc", times, sums)
    low, high = np.quantile([np.nanmean(kinds(one)) for one in drawn], [0.025, 0.975])
    return float(low), float(high)


def score(path: Path, show_errors: bool) -> None:
    messages = read_labelled(path)
    games, asked = len({m["game_id"] for m in messages}), sum(len(m["questions"]) for m in messages)
    print(f"{path.name}: {games} games, {len(messages)} messages, {asked} questions")
    rules = {name: lambda m, find=find: bool(find(m)) for name, find in FINDERS.items()}
    rules |= {name: lambda m, rule=rule: rule(m["text"]) for name, rule in SIMPLE_RULES.items()}
    for name, rule in rules.items():
        print(
            "  question or not: {:24} F1 {:.3f}  precision {:.3f}  recall {:.3f}".format(
                name, *question_or_not(messages, rule)
            )
        )
    for name, find in FINDERS.items():
        sums = counts(messages, find)
        by_kind = kinds(sums.sum(0))
        print(f"  kinds, {name}:")
        for kind, value, (hits, found, labelled) in zip(KINDS, by_kind, sums.sum(0), strict=True):
            print(
                f"    {kind:10} F1 {value:.3f}  ({labelled:.0f} labels, {found:.0f} found, {hits:.0f} agree)"
            )
        low, high = interval(sums)
        print(
            f"    on average F1 {np.nanmean(by_kind):.3f} (95% interval over games {low:.3f} to {high:.3f})"
        )
    if show_errors:
        for message in messages:
            ours = [(q.kind, q.text) for q in in_context(message)]
            theirs = [(q["kind"], q["text"]) for q in message["questions"]]
            if Counter(k for k, _ in ours) != Counter(k for k, _ in theirs):
                print(f"  {message['text']!r}\n    labelled {theirs}\n    found    {ours}")


def speed(count: int = 1_000_000) -> None:
    """Times `count` messages of people, alone and in their games; of the latter nothing is kept from one round to the next."""
    games = [transcript(game) for game in human_games(HUMAN)]
    texts = [
        text.removeprefix("[message] ")
        for turns in games
        for _, text in turns
        if text.startswith("[message]")
    ]
    start = time.perf_counter()
    for i in range(count):
        find_questions(texts[i % len(texts)])
    seconds = time.perf_counter() - start
    print(f"{count} messages alone, {len(texts)} different ones in turn: {seconds:.1f} s on one core")
    start, read = time.perf_counter(), 0
    while read < count:
        questions.forget()
        for turns in games:
            for seat in SEATS:
                classify(turns, seat, seen={})
        read += len(texts)
    seconds = (time.perf_counter() - start) * count / read
    print(
        f"{count} messages in their games, both seats' and what became of them: {seconds:.1f} s on one core"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--labels", type=Path, nargs="+", help="labelled messages, JSON lines")
    parser.add_argument("--errors", action="store_true", help="show the messages that were sorted wrongly")
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
