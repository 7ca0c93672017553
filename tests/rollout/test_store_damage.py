"""Whatever happens to the files of episodes: none is lost, and none counts twice."""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slim_rl.core.errors import UserError
from slim_rl.rollout.collect import collect
from slim_rl.rollout.shards import read_frame
from slim_rl.rollout.store import Store
from tests.rollout.test_collect import REQUESTS, Players

JOURNAL = ".journal.jsonl"
numbers = st.integers(0, 10**6)


def remove(path: Path, a: int, b: int) -> None:
    path.unlink(missing_ok=True)


def truncate(path: Path, a: int, b: int) -> None:
    if path.exists():
        path.write_bytes(path.read_bytes()[: a % (path.stat().st_size + 1)])


def overwrite(path: Path, a: int, b: int) -> None:
    if path.exists() and (data := bytearray(path.read_bytes())):
        data[a % len(data)] ^= 1 + b % 255
        path.write_bytes(data)


def rename(path: Path, a: int, b: int) -> None:
    if path.exists():
        path.rename(path.with_name(f"{a % 5:05d}.parquet" if b % 2 else f"{path.name}.old"))


def double(path: Path, a: int, b: int) -> None:
    if path.exists():
        path.with_name(f"{a % 9:05d}.parquet").write_bytes(path.read_bytes())


def shuffle_lines(path: Path, a: int, b: int) -> None:
    journal = path.with_name(JOURNAL)
    lines = journal.read_bytes().split(b"\n") if journal.exists() else [b""]
    i, j = a % len(lines), b % len(lines)
    lines[i], lines[j] = lines[j], [lines[i], lines[j], b"[7]", lines[i][: b % 90]][a % 4]
    journal.write_bytes(b"\n".join(lines))


@pytest.mark.slow
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(
            st.sampled_from([remove, truncate, overwrite, rename, double, shuffle_lines]),
            st.sampled_from(["00000.parquet", "00001.parquet", "00002.parquet"]),
            numbers,
            numbers,
        ),
        min_size=1,
        max_size=4,
    )
)
def test_files_of_episodes_are_damaged_in_any_way(damages):
    with TemporaryDirectory() as name:
        folder = Path(name)
        for start in (0, 5, 10):
            asyncio.run(collect(REQUESTS[start : start + 5], Players().play, Store(folder), concurrency=1))
        last = Store(folder)
        for request in REQUESTS[15:18]:  # of a process that was killed
            last.add(asyncio.run(Players().play(request)))
        for damage, file, a, b in damages:
            damage(folder / file, a, b)
        for _ in range(9):
            try:
                asyncio.run(collect(REQUESTS, Players().play, Store(folder), concurrency=1))
                break
            except UserError as error:
                named = Path(str(error).partition(" ")[0])
                assert named.parent == folder
                named.unlink()
        frame = read_frame(folder)
        assert sorted(frame["episode_id"]) == sorted(request.episode_id for request in REQUESTS)
        assert set(frame["status"]) == {"completed"} and set(frame["reward.a"]) == {0.5}
