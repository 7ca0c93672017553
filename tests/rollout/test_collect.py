"""Episodes are whole or not there, and what is finished is not played again."""

import asyncio
import errno

import pyarrow.parquet as pq
import pytest

import slim_rl
from slim_rl.core.episode import Episode, TokenTrace, Turn
from slim_rl.core.errors import UserError
from slim_rl.core.game import Task
from slim_rl.core.message import Message, ToolCall, heard, said
from slim_rl.rollout.collect import collect
from slim_rl.rollout.seating import Request
from slim_rl.rollout.shards import read_dialogues, read_episodes, read_frame, shards, write_shard
from slim_rl.rollout.store import Store

REQUESTS = [Request(f"e/{i}", "game", Task("g"), ("someone",)) for i in range(20)]
CALLS = (
    ToolCall("add", {"a": 1, "b": [2.5, None]}, raw='<tool_call>{"name": "add"}</tool_call>'),
    ToolCall("", {}, "invalid_json", "<tool_call>oops"),
)


def collecting(*arguments, **options):
    return asyncio.run(collect(*arguments, **options))


def episode(request, **changes):
    trace = TokenTrace([1, 2, 3], [0, 1, 1], [0.0, -0.5, -1.25])
    seen = (Message("tool", "result"), Message("user", "more"))
    values = dict(
        turns=[Turn("a", heard("seen"), said("said")), Turn("a", seen, Message("assistant", "", CALLS))],
        rewards={"a": 0.5},
        metrics={"turn_count": 2.0, "step": 7.0},
        traces={"a": trace},
        step=3,
        series="s",
        arm="forced-3",
    )
    return Episode(request.episode_id, "g", "game", {"a": "someone"}, **{**values, **changes})


class Players:
    """Plays episodes, and remembers how many were under way at once."""

    def __init__(self, fails=()):
        self.fails, self.played, self.now, self.most = set(fails), [], 0, 0

    async def play(self, request):
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.001)
        self.now -= 1
        self.played.append(request.episode_id)
        if request.episode_id in self.fails:
            return episode(request, status="failed", error="Timeout: gone", rewards={}, metrics={}, traces={})
        return episode(request)


def test_episodes_come_back_from_disk_as_they_were_and_concurrency_is_a_limit(tmp_path):
    players = Players()
    collected = collecting(REQUESTS, players.play, Store(tmp_path), concurrency=3)
    assert players.most == 3
    assert [e.episode_id for e in collected] == [request.episode_id for request in REQUESTS]
    assert sorted(read_episodes(tmp_path), key=lambda e: e.episode_id) == sorted(collected, key=lambda e: e.episode_id)
    frame = read_frame(tmp_path)
    assert frame["reward.a"].tolist() == [0.5] * 20 and set(frame["seat.a"]) == {"someone"}
    assert (set(frame["turn_count"]), set(frame["step"]), set(frame["step.metric"])) == ({2.0}, {3}, {7.0})
    called = '<tool_call>{"name": "add"}</tool_call>\n<tool_call>oops'
    assert {tuple(turns) for _, turns in read_dialogues(*shards(tmp_path))} == {(("a", "said"), ("a", called))}


def test_finished_episodes_are_not_played_again_and_failed_ones_are(tmp_path):
    collecting(REQUESTS[:10], Players(fails=["e/3", "e/7"]).play, Store(tmp_path), concurrency=4)
    again = Players()
    collected = collecting(REQUESTS, again.play, Store(tmp_path), concurrency=4)
    assert sorted(again.played) == sorted(["e/3", "e/7", *(request.episode_id for request in REQUESTS[10:])])
    assert {e.status for e in collected} == {"completed"} == set(read_frame(tmp_path)["status"])


@pytest.mark.parametrize("keep", ["each", "whole"])
def test_what_had_ended_before_an_error_is_kept_unless_all_or_nothing_is_asked_for(tmp_path, keep):
    async def play(request):
        if request.episode_id == "e/5":
            raise KeyError("a mistake of ours")
        return episode(request)

    with pytest.raises(KeyError, match="a mistake of ours"):
        collecting(REQUESTS, play, Store(tmp_path, keep), concurrency=1)
    assert len(shards(tmp_path)) == (keep == "each")
    kept = [e.episode_id for e in read_episodes(tmp_path)]
    assert kept[:5] == ([f"e/{i}" for i in range(5)] if keep == "each" else []) and "e/5" not in kept


def test_a_success_counts_wherever_the_failure_is_filed(tmp_path):
    """A batch of a flow has a folder of its own, which may sort behind the folder of the success."""
    collecting(REQUESTS[:1], Players().play, Store(tmp_path), concurrency=1)
    write_shard(tmp_path / "from-e" / "00000.parquet", [episode(REQUESTS[0], status="failed", rewards={})])
    (tmp_path / "from-e" / ".00001.parquet").write_bytes(b"half")  # an unfinished one does not count
    for frame in (read_frame(tmp_path), slim_rl.episodes(tmp_path)):
        assert frame["status"].tolist() == ["completed"]


def test_a_shard_has_the_next_free_number_and_a_damaged_one_is_named(tmp_path):
    for start in range(0, 15, 5):
        collecting(REQUESTS[start : start + 5], Players().play, Store(tmp_path), concurrency=1)
    (tmp_path / "00000.parquet").unlink()
    collecting(REQUESTS, Players().play, Store(tmp_path), concurrency=1)
    assert [path.stem for path in shards(tmp_path)] == ["00001", "00002", "00003"]
    assert len(Store(tmp_path).finished()) == 20
    (tmp_path / "00002.parquet").write_bytes(b"half")
    with pytest.raises(UserError, match=r"00002\.parquet cannot be read as a shard of episodes"):
        list(read_episodes(tmp_path))


def test_a_full_disk_ends_a_collection_in_a_sentence(tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    collecting(REQUESTS[:5], Players().play, Store(tmp_path), concurrency=2)
    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(UserError, match="the disk is full"):
        collecting(REQUESTS, Players().play, Store(tmp_path, shard_episodes=4), concurrency=2)
    assert len(list(read_episodes(tmp_path))) == 5
    assert shards(tmp_path) == [tmp_path / "00000.parquet"]
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".part"]
    assert len(Store(tmp_path).finished()) == 9  # those without room in a shard are in the journal
