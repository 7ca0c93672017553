"""Episodes are whole or not there, and what is finished is not played again."""

import asyncio
import errno
import os
import subprocess

import pyarrow.parquet as pq
import pytest

from slim_rl.errors import UserError
from slim_rl.players.policy import TokenTrace
from slim_rl.rollout.collect import collect
from slim_rl.rollout.episode import Episode, Turn
from slim_rl.rollout.filters import reward_varies
from slim_rl.rollout.store import finished, read_episodes, read_frame, shards, write_shard
from slim_rl.rollout.table import Job

JOBS = [Job(f"e/{i}", {}, ("someone",)) for i in range(20)]


def episode(job, **changes):
    trace = TokenTrace([1, 2, 3], [0, 1, 1], [0.0, -0.5, -1.25])
    values = dict(
        turns=[Turn("a", "seen", "said")], rewards={"a": 0.5}, facts={"turns": 2.0}, traces={"a": trace}
    )
    return Episode(job.episode_id, "g", "game", {"a": "someone"}, 3, **{**values, **changes})


class Players:
    """Plays episodes, and remembers how many were under way at once."""

    def __init__(self, fails=()):
        self.fails, self.played, self.now, self.most = set(fails), [], 0, 0

    async def play(self, job):
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.001)
        self.now -= 1
        self.played.append(job.episode_id)
        if job.episode_id in self.fails:
            return episode(job, status="failed", error="Timeout: gone", rewards={}, facts={}, traces={})
        return episode(job)


def test_episodes_come_back_from_disk_as_they_were(tmp_path):
    collected = collect(JOBS, Players().play, tmp_path, concurrency=4)
    assert [e.episode_id for e in collected] == [job.episode_id for job in JOBS]
    assert sorted(read_episodes(tmp_path), key=lambda e: e.episode_id) == sorted(
        collected, key=lambda e: e.episode_id
    )
    assert read_frame(tmp_path)["reward.a"].tolist() == [0.5] * 20


def test_no_more_than_so_many_at_once(tmp_path):
    players = Players()
    collect(JOBS, players.play, tmp_path, concurrency=3)
    assert players.most == 3


def test_finished_episodes_are_not_played_again_and_failed_ones_are(tmp_path):
    collect(JOBS[:10], Players(fails=["e/3", "e/7"]).play, tmp_path, concurrency=4)
    again = Players()
    collected = collect(JOBS, again.play, tmp_path, concurrency=4)
    assert sorted(again.played) == sorted(["e/3", "e/7", *(job.episode_id for job in JOBS[10:])])
    assert {e.status for e in collected} == {"completed"}


def test_what_had_ended_before_an_error_is_kept(tmp_path):
    async def play(job):
        if job.episode_id == "e/5":
            raise KeyError("a mistake of ours")
        return episode(job)

    with pytest.raises(KeyError, match="a mistake of ours"):
        collect(JOBS, play, tmp_path, concurrency=1)
    kept = {e.episode_id for e in read_episodes(tmp_path)}
    assert {f"e/{i}" for i in range(5)} <= kept and "e/5" not in kept


def test_all_or_nothing(tmp_path):
    async def play(job):
        if job.episode_id == "e/5":
            raise KeyError
        return episode(job)

    with pytest.raises(KeyError):
        collect(JOBS, play, tmp_path, concurrency=1, shard_episodes=None)
    assert not shards(tmp_path)
    collect(JOBS, Players().play, tmp_path, concurrency=1, shard_episodes=None)
    assert len(shards(tmp_path)) == 1


def test_of_an_episode_that_was_played_again_the_last_playing_counts(tmp_path):
    for fails in (["e/3"], []):
        collect(JOBS[:5], Players(fails=fails).play, tmp_path, concurrency=1)
    assert read_frame(tmp_path)["status"].tolist() == ["completed"] * 5


def test_an_unfinished_shard_does_not_count(tmp_path):
    write_shard(tmp_path / "00000.parquet", [episode(JOBS[0])])
    (tmp_path / ".00001.parquet.part").write_bytes(b"half")
    (tmp_path / ".00001.parquet").write_bytes(b"half")
    assert len(shards(tmp_path)) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_is_told_in_a_sentence_and_nothing_half_written_stays(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        write_shard(disk / "00000.parquet", [episode(JOBS[0])])
        noise = [episode(job, turns=[Turn("a", os.urandom(9999).hex(), "")]) for job in JOBS]
        with pytest.raises(UserError, match=r"00001\.parquet could not be written: the disk is full"):
            write_shard(disk / "00001.parquet", noise)
        assert [path.name for path in disk.iterdir()] == ["00000.parquet"]
        assert len(list(read_episodes(disk))) == 1
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_full_disk_ends_a_collection_in_a_sentence(tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    collect(JOBS[:5], Players().play, tmp_path, concurrency=2)
    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(UserError, match="the disk is full"):
        collect(JOBS, Players().play, tmp_path, concurrency=2, shard_episodes=4)
    assert len(list(read_episodes(tmp_path))) == 5
    assert shards(tmp_path) == [tmp_path / "00000.parquet"]
    assert not list(tmp_path.glob("*.part")) and not list(tmp_path.glob(".*.part"))
    assert len(finished(tmp_path)) == 9  # those that found no room in a shard are noted


@pytest.mark.parametrize(
    ("rewards", "varies"),
    [
        ([{"a": 1, "b": -1}, {"a": -1, "b": 1}], True),
        ([{"a": 0.9, "b": 0.9}] * 3, False),
        ([{"a": 0.9}, {"a": 0.8}], True),
        ([], False),
    ],
)
def test_a_group_varies_if_any_seat_does(rewards, varies):
    failed = episode(JOBS[0], status="failed", rewards={})
    assert reward_varies([failed, *(episode(JOBS[0], rewards=r) for r in rewards)]) == varies
