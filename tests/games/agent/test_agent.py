"""Agents of the user's own, through the real client of OpenAI."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import yaml

from slim_rl.core.errors import UserError
from slim_rl.evaluation.study import rewarded
from slim_rl.games import game_parameters, load_games
from slim_rl.games.calculator.arithmetic import evaluate, written
from slim_rl.players.renderer import Renderer
from slim_rl.rollout.seating import PolicyRules, Request, Seating
from slim_rl.rollout.shards import read_episodes, read_frame, write_shard
from slim_rl.runtime.process import wait_until
from slim_rl.training.config import TrainConfig
from slim_rl.training.grpo import sequences
from tests import echo
from tests.babbler import Caller, Scripted, check_tokens
from tests.checkpoints import chat_checkpoint
from tests.echo import EchoEngine, echo_tokenizer

GUESTS = "agent:tests.games.agent.guests:{}"
EXAMPLES = Path(__file__).parents[3] / "examples/agents"


def says(tokenizer, *texts):
    """An engine that says these texts, one after the other."""
    return Scripted([*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id] for text in texts)


@pytest.fixture(scope="module")
def tokenizer():
    return echo_tokenizer()


@pytest.fixture
def tasks_file(tmp_path):
    file = tmp_path / "tasks.jsonl"
    words = np.random.default_rng(0).choice(echo.WORDS, 60)
    file.write_text("".join(json.dumps({"seed": n, "word": word}) + "\n" for n, word in enumerate(words)))
    return file


@pytest.fixture
def play(tokenizer, tasks_file):
    """play(name, engine, **parameters): the episodes of some tasks, all at once."""

    def play(name, engine, count=1, turn_tokens=24, **parameters):
        file = {"tasks": str(tasks_file)} if name.startswith("agent") else {}
        parameters = game_parameters(name, file | parameters)
        games = load_games({name: parameters}, seed=0)
        rules = PolicyRules(Renderer(tokenizer, thinking=False), turn_tokens, 1.0)
        seating = Seating(games, {"policy": rules.maker(engine)}, seed=0)
        tasks = list(games[name].taskset.tasks("train", count))
        requests = [Request(f"e{n}", name, task, ("policy",)) for n, task in enumerate(tasks)]

        async def all_of_them():
            return await asyncio.gather(*map(seating.play, requests))

        return asyncio.run(all_of_them())

    return play


def test_an_agent_plays_as_the_built_in_game_does_token_by_token(play, tokenizer):
    episodes = play(GUESTS.format("looks"), EchoEngine(tokenizer), count=8, turn_tokens=64)
    assert [e.rewards for e in episodes] == [{"agent": 1.0}] * 8
    built_in = play("tests.echo", EchoEngine(tokenizer), count=12, turn_tokens=64)
    solved = {episode.turns[-1].text: episode.traces["solver"] for episode in built_in}
    for episode in episodes:
        [trace] = episode.traces.values()
        assert trace == solved[episode.turns[-1].text]
        assert (episode.metrics["turn_count"], episode.metrics["calls"], episode.metrics["sequences"]) == (2, 1, 1)
        assert episode.metrics["prompt_tokens"] == trace.loss_mask.index(1, trace.loss_mask.index(1) + 30)


@pytest.mark.parametrize(
    ("name", "parameters", "package"),
    [
        ("agent:examples.agents.sums:run", {}, "openai"),
        ("agent:examples.agents.agents_sdk:run", {}, "agents"),
        ("agent:examples.agents.graph:run", {}, "langgraph"),
        ("agent", {"command": [sys.executable, str(EXAMPLES / "program.py")]}, "openai"),
    ],
)
def test_the_examples_play_as_the_calculator_does_token_by_token(play, tokenizer, tmp_path, name, parameters, package):
    pytest.importorskip(package, reason="needs pip install .[agents]")
    [task] = load_games({"calculator": game_parameters("calculator", {})}, 0)["calculator"].taskset.tasks("train", 1)
    expression = task.state["expression"]
    turns = [echo.call("calculate", expression=expression), written(evaluate(expression))]
    (tmp_path / "sum.jsonl").write_text(json.dumps({"sum": expression}))
    sums = dict.fromkeys(("tasks", "eval_tasks"), str(tmp_path / "sum.jsonl"))
    [built_in] = play("calculator", says(tokenizer, *turns))
    [episode] = play(name, says(tokenizer, *turns), **sums, **parameters)
    assert episode.traces == {"agent": built_in.traces["solver"]} and episode.rewards == {"agent": 1.0}, episode.error
    assert (episode.metrics["calls"], episode.metrics["encoded_again_tokens"]) == (1, 0)
    [mistaken] = play(name, says(tokenizer, echo.call("no_such_tool", x=1), *turns[1:]), **sums, **parameters)
    assert mistaken.status == "completed", mistaken.error  # the model's mistake is not the agent's failure


@pytest.mark.parametrize("seed", range(6))
def test_whatever_a_client_does_what_was_sampled_is_what_is_trained_on(play, tokenizer, seed):
    engine = Caller(tokenizer, seed, echo.SPOKEN)
    for episode in play(GUESTS.format("wanders"), engine, count=8, max_turns=40):
        assert episode.status in ("completed", "truncated"), episode.error
        mine = [n for n, session in enumerate(engine.sessions) if session.startswith(f"{episode.episode_id}/")]
        own = SimpleNamespace(sessions=[engine.sessions[n] for n in mine], asked=[engine.asked[n] for n in mine])
        check_tokens(own, episode)
        assert sum(sum(t.loss_mask) for t in episode.traces.values()) == episode.metrics["sampled_tokens"]
        assert set(episode.rewards) == set(episode.traces)


def test_only_an_edited_history_begins_a_sequence(play, tokenizer, tmp_path):
    [kept] = play(GUESTS.format("restates"), says(tokenizer, "river", echo.call("look"), "stone"))
    assert (list(kept.traces), kept.metrics["encoded_again_tokens"]) == (["agent"], 0)
    [edited] = play(GUESTS.format("edits"), says(tokenizer, "river", "stone", "apple"))
    assert list(edited.traces) == ["agent", "agent#2"]
    assert edited.metrics["encoded_again_tokens"] == 2  # "river" and its end
    edited.episode_id = "another"
    write_shard(tmp_path / "both.parquet", [kept, edited])
    reported = rewarded(read_frame(tmp_path), "policy")
    assert list(reported["reward"]) == [kept.rewards["agent"], edited.rewards["agent"]]


@pytest.mark.parametrize(("guest", "is_told"), [("restates", False), ("edits", False), ("rewrites", True)])
def test_an_agent_that_never_sends_back_what_its_model_said_is_told_of_once(play, tokenizer, caplog, guest, is_told):
    name = GUESTS.format(guest)
    for _ in range(2):
        play(name, Caller(tokenizer, 0, echo.SPOKEN), count=4)
    assert caplog.text.count(f"The agent {name} sends back other words") == is_told


def test_sequences_of_one_episode_share_its_advantage(play, tokenizer):
    engine = Caller(tokenizer, 0, echo.SPOKEN)
    episodes = play(GUESTS.format("wanders"), engine, count=4, max_turns=40)
    trained = sequences(TrainConfig(), [episodes], {})
    values = {}
    for sequence in trained:
        values.setdefault(sequence.episode, set()).add(sequence.advantage)
    assert all(len(of_one) == 1 for of_one in values.values()) and len(trained) > len(episodes)
    rewards = np.array([e.rewards["agent"] for e in episodes])
    expected = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
    assert np.allclose([value for [value] in values.values()], expected, atol=1e-4)


def test_an_equal_request_is_answered_again_only_where_the_client_missed_the_reply(play, tokenizer):
    [episode] = play(GUESTS.format("repeats"), Caller(tokenizer, 0, echo.SPOKEN))
    assert (episode.metrics["same"], episode.metrics["other"]) == (1, 1), episode.error
    assert (
        episode.metrics["turn_count"] == 5
    )  # the first, the one sampled anew, two at once, and the one whose client was gone


def test_a_client_reads_the_log_probs_that_are_trained_on(play, tokenizer):
    [episode] = play(GUESTS.format("measures"), Caller(tokenizer, 0, echo.SPOKEN))
    traces = episode.traces.values()
    assert episode.metrics["tokens"] == sum(sum(trace.loss_mask) for trace in traces) > 2, episode.error
    assert episode.metrics["logprob"] == pytest.approx(sum(sum(trace.logprobs) for trace in traces))


@pytest.mark.parametrize(
    ("guest", "options", "status", "reward", "error"),
    [
        ("compacts", {"engine_tokens": 120}, "completed", 1.0, ""),
        ("chats", {"max_turns": 3}, "truncated", 0.0, ""),
        ("fails", {}, "failed", None, "KeyError: ('a bug of the agent', '[key]')"),
        ("sleeps", {"seconds": 0.5}, "failed", None, "longer than 0.5 s"),
        ("idles", {}, "failed", None, "without asking"),
        ("crowds", {}, "completed", 1.0, ""),
        ("hostile", {"count": 2}, "completed", 1.0, ""),
    ],
)
@pytest.mark.slow
def test_how_an_agent_ends(play, tokenizer, guest, options, status, reward, error):
    engine = Caller(tokenizer, 0, echo.SPOKEN)
    engine.max_context_tokens = options.pop("engine_tokens", engine.max_context_tokens)
    for episode in play(GUESTS.format(guest), engine, **options):
        assert (episode.status, episode.rewards.get("agent")) == (status, reward), episode.error
        assert error in episode.error


PROGRAM = """
import json, os, sys, urllib.request
task = json.load(sys.stdin)
{before}
body = json.dumps({{"messages": [{{"role": "user", "content": "What is the word?"}}]}}).encode()
headers = {{"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
reply = json.load(urllib.request.build_opener(urllib.request.ProxyHandler({{}})).open(request))
print("thinking aloud")
print(json.dumps({{"reward": float(bool(reply["choices"])), "seed": task["seed"]}}))
{after}
"""


@pytest.mark.parametrize(
    ("before", "after", "status", "error"),
    [
        ("", "", "completed", ""),
        ("", "sys.exit(3)", "failed", "ended with 3"),
        ("", "os.kill(os.getpid(), 9)", "failed", "ended with 137"),
        ("", "print('no reward')", "failed", "no reward in its last line"),
        ("", "print(os.environ['OPENAI_API_KEY']); sys.exit(1)", "failed", "[key]"),
        (
            "import subprocess, time; subprocess.Popen(['sleep', '76.54321']); time.sleep(77)",
            "",
            "failed",
            "longer than 2 s",
        ),
    ],
)
def test_a_program_is_an_agent(play, tokenizer, before, after, status, error):
    command = [sys.executable, "-c", PROGRAM.format(before=before, after=after)]
    [episode] = play("agent", Caller(tokenizer, 0, echo.SPOKEN), command=command, seconds=2 if "77" in before else 60)
    assert (episode.status, error in episode.error) == (status, True), episode.error
    assert "sk-" not in episode.error
    if status == "completed":
        assert episode.rewards == {"agent": 1.0} and episode.metrics["seed"] >= 0
    if "76.54321" in before:
        assert not any("76.54321" in (p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"]))


def test_a_run_that_is_killed_leaves_no_agent_behind(tmp_path, tasks_file):
    file = tmp_path / "pids"
    program = (
        "import os, pathlib, subprocess, sys, time; pids = [os.getpid(), subprocess.Popen(['sleep', '3600']).pid]\n"
        f"pathlib.Path({str(file)!r}).write_text(' '.join(map(str, pids)) + ' .'); time.sleep(3600)"
    )
    tasks = dict.fromkeys(("tasks", "eval_tasks"), str(tasks_file))
    parameters = {**tasks, "command": [sys.executable, "-c", program]}
    run = (
        "import asyncio, slim_rl; from tests.games.agent.guests import Silent\n"
        f"asyncio.run(slim_rl.play('agent', {{'agent': Silent()}}, parameters={parameters!r}))"
    )
    process = subprocess.Popen([sys.executable, "-c", run], cwd=EXAMPLES.parents[1])
    assert wait_until(lambda: file.is_file() and file.read_text().endswith("."), 60)
    process.kill()
    process.wait()
    pids = [int(pid) for pid in file.read_text().split()[:-1]]
    assert wait_until(lambda: not any(map(psutil.pid_exists, pids)), 10)


def test_tasks_are_split_by_name_and_what_is_wrong_is_a_sentence(tasks_file):
    name = GUESTS.format("looks")

    def tasks(purpose, **parameters):
        given = game_parameters(name, {"tasks": str(tasks_file), **parameters})
        return list(load_games({name: given}, 0)[name].taskset.tasks(purpose, 100))

    train, held_out = ({task.state["task"]["seed"] for task in tasks(p)} for p in ("train", "evaluate"))
    assert train | held_out == set(range(60)) and not train & held_out and 5 <= len(held_out) <= 20
    tasks_file.write_text('{"id": "a"}\n{"id": "a"}\n')
    with pytest.raises(UserError, match="line 2 has the id a again"):
        tasks("train", eval_tasks=str(tasks_file))
    tasks_file.write_text("[]\n")
    with pytest.raises(UserError, match="line 1 is not a JSON object"):
        tasks("train")
    for game, given, said in (
        (name, {}, "tasks is missing"),
        ("agent", {"tasks": "t.jsonl"}, "neither"),
        (name, {"tasks": "t.jsonl", "command": ["x"]}, "both"),
        ("agent:no_such:run", {"tasks": "t.jsonl"}, "no_such"),
    ):
        with pytest.raises(UserError, match=said):
            load_games({game: game_parameters(game, given)}, 0)


def test_a_reward_that_is_none_ends_the_run(play, tokenizer):
    with pytest.raises(UserError, match="returned 'good'"):
        play(GUESTS.format("judges_nothing"), Caller(tokenizer, 0, echo.SPOKEN))


@pytest.mark.slow
def test_the_agent_of_the_guide_goes_from_its_tasks_to_the_report(tmp_path, monkeypatch, run_stage):
    guide = (Path(__file__).parents[3] / "docs/agents.md").read_text()
    parameters = yaml.safe_load(re.findall(r"^```yaml\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)[0])
    assert all(len(path.read_text().splitlines()) <= 60 for path in EXAMPLES.glob("*.py"))
    monkeypatch.chdir(tmp_path)
    Path("sums.jsonl").write_text("".join(json.dumps({"id": n, "sum": f"{n} * 3 + 4"}) + "\n" for n in range(40)))
    chat_checkpoint(Path("models/calculator"), "qwen2.5")
    small = {"games_per_step": 2, "samples_per_game": 2, "steps": 1, "filters": []}
    Path("params.yaml").write_text(yaml.safe_dump({**parameters, "cores": 1, "train": small}))
    for stage in ("code", "games", "base_model", "train", "evaluate", "analyze"):
        run_stage(stage)
    metrics = json.loads(Path("reports/metrics.json").read_text())
    assert metrics["trained"]["pass_rate"] == 0
    listed = Path("data/code/train.txt").read_text()
    assert "module examples.agents.sums " in listed and "file sums.jsonl " in listed
    assert {e.status for e in read_episodes(Path("data/rollouts"))} <= {"completed", "truncated"}
