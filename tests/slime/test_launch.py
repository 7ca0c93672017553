"""Our parameters as SLIME's command, and the run of it. A script that leaves what SLIME leaves stands in for SLIME."""

import asyncio
import itertools
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

import stages.analyze
import stages.slime
import stages.train
from slim_rl.config import Config
from slim_rl.core.errors import UserError
from slim_rl.core.game import Task
from slim_rl.engines.model import load_model
from slim_rl.games import load_games
from slim_rl.rollout.shards import read_episodes
from slim_rl.rollout.tasks import tasks_path, write_tasks
from slim_rl.runtime.process import wait_until
from slim_rl.slime import launch
from slim_rl.slime.arguments import arguments
from slim_rl.slime.command import command, environment, job_command, shown
from slim_rl.slime.folder import PARAMETERS, prepare
from slim_rl.slime.job import Job
from slim_rl.slime.parameters import RunParameters
from slim_rl.slime.progress import Progress, note_metrics
from slim_rl.slime.sbatch import sbatch
from slim_rl.slime.source import NEEDED, TESTED, check_source
from slim_rl.training.checkpoint import save_model
from tests.settings import merged
from tests.slime.support import QWEN, ROOT, free_port, write_source

MATCHING = {"matching": {"seating": ["policy", "scripted"]}}
KUHN = {"kuhn": {"seating": ["policy", "policy"]}}
TASKS = {"matching": [Task("g", "prompt", {"table": [1]})]}
FLAG = "flag = lambda name: sys.argv[sys.argv.index(name) + 1]\n"
LEAVES_A_TRAINING = f"""
import json, os, pathlib, shutil, sys, yaml
from slim_rl.core.episode import Episode
from slim_rl.rollout.shards import write_shard
from slim_rl.slime.progress import note_metrics
{FLAG}
last = int(flag("--num-rollout")) - 1
shutil.copytree(flag("--hf-checkpoint"), flag("--save-hf").format(rollout_id=last))
folder = pathlib.Path(yaml.safe_load(open(flag("--custom-config-path")))["slim_rl_folder"])
(folder / f"hf/{{last}}/model.safetensors.index.json").write_text(json.dumps({{"weight_map": {{}}}}))
(folder / "megatron/rollout").mkdir(parents=True, exist_ok=True)
(folder / f"megatron/rollout/global_dataset_state_dict_{{last}}.pt").touch()
for step in range(last + 1):
    episode = Episode(f"e{{step}}", "g", step=step, rewards={{"player-1": step / 10}})
    write_shard(folder / f"rollouts/step-{{step:05d}}/00000.parquet", [episode])
    note_metrics(folder, step, step, {{"reward": step / 10, "all/reward": 0.0}})
    note_metrics(folder, step, step + 1, {{"held_out/reward": step / 5, "held_out/env/matching/reward": step / 5}})
"""


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    (tmp_path / "models/base").mkdir(parents=True)
    (tmp_path / "models/base/config.json").write_text(json.dumps(QWEN))
    write_source(tmp_path / "slime", **{"train_async.py": "", "train.py": LEAVES_A_TRAINING})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


def config_of(**changes):
    given = {
        "games": MATCHING,
        "train": {"backend": "slime", "steps": 3},
        "slime": {"directory": "slime", "python": sys.executable},
    }
    return Config.model_validate(merged(given, changes))


def parameters_of(games=MATCHING, **changes):
    removed = {name: None for name in MATCHING if name not in games}
    return RunParameters.of(config_of(games={**removed, **games}, **changes))


def run(parameters):
    return asyncio.run(launch.run(parameters, Path("models/base"), TASKS, TASKS, Path("run")))


def words_of(**changes):
    return arguments(parameters_of(**changes), Path("models/base"), Path("/run"))


@pytest.mark.parametrize(
    ("changes", "there", "missing"),
    [
        ({}, "--num-layers 3 --num-rollout 3 --colocate --use-fault-tolerance --use-rollout-logprobs "
             "--rollout-health-check-interval 10 --rollout-health-check-timeout 30 --rollout-health-check-first-wait 0",
         "--rollout-num-gpus --sequence-parallel --use-kl-loss --use-wandb --eval-interval --group-rm "
         "--rollout-function-path"),
        ({"slime": {"nodes": 2, "tensor_parallel": 4}}, "--actor-num-nodes 2 --sequence-parallel", ""),
        ({"slime": {"rollout_gpus": 4}}, "--rollout-num-gpus 4", "--colocate"),
        ({"slime": {"rollout_gpus": 4, "mode": "fully_async", "evaluate_every": 5}, "evaluate": {"temperature": 0.5}},
         "--rollout-function-path slim_rl.slime.fully_async.generate_rollout --eval-interval 5 --eval-temperature 0.5",
         ""),
        ({"train": {"wandb_project": "p"}}, "--use-wandb --wandb-project p --wandb-group run", ""),
        ({"train": {"average_over": "episodes", "kl_coefficient": 0.1}}, "--use-kl-loss --kl-loss-coef 0.1",
         "--calculate-per-token-loss"),
        ({"slime": {"arguments": ["--lr", "9", "--router-policy", "manual"]}}, "--lr 9 --router-policy manual", ""),
        ({"slime": {"arguments": ["--no-balance-data", "--no-load-optim", "--no-router-policy"]}},
         "--no-load-optim --recompute-method", "--balance-data --no-balance-data --router-policy --no-router-policy"),
        ({"slime": {"arguments": ["--use-tis"]}}, "--use-tis", "--use-rollout-logprobs"),
        # SLIME cannot repair engines that it did not start.
        ({"slime": {"arguments": ["--rollout-external-engine-addrs", "a:1"]}}, "", "--use-fault-tolerance"),
        ({"games": {"matching": {"reward_function": {"function": "boxed", "scope": "group"}}}},
         "--group-rm --custom-rm-path slim_rl.slime.groups.judge_group", ""),
    ],
)  # fmt: skip
def test_parameters_become_slimes_flags(workspace, changes, there, missing):
    words = words_of(**changes)
    for flag in there.replace(" --", "\n--").splitlines():  # with its value
        assert f" {flag} " in f" {' '.join(words)} "
    assert not set(missing.split()) & set(words)
    flags = [word for word in words if word.startswith("--")]
    assert len(flags) == len(set(flags))  # the parsers also refuse a value that a later one replaces


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"slime": {"mode": "async"}}, r"slime\.rollout_gpus"),
        ({"slime": {"request_timeout_seconds": 900}}, r"slime\.request_timeout_seconds"),
        ({"slime": {"colocate": False}}, "colocate"),
        ({"games": KUHN, "slime": {"arguments": ["--partial-rollout"]}}, "--partial-rollout"),
        ({"slime": {"arguments": ["--rollout-data-transport", "straw"]}}, "straw.*JSON"),
        ({"slime": {"arguments": ["--use-score-centering"]}}, "--use-score-centering.*log-probs"),
        ({"slime": {"python": "no-such-python"}}, r"slime\.python is no-such-python"),
        ({"slime": {"directory": "elsewhere"}}, r"slime\.directory is .*elsewhere.* train\.py"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(workspace, changes, named):
    with pytest.raises((UserError, ValueError), match=named):
        run(parameters_of(**changes))
    assert not (workspace / "run/metrics.jsonl").exists()


def test_a_model_that_config_json_does_not_describe(workspace):
    Path("models/base/config.json").write_text(json.dumps({**QWEN, "model_type": "qwen3_moe"}))
    with pytest.raises(UserError, match=r"qwen3_moe.*scripts/models"):
        words_of()


@pytest.mark.parametrize("name", NEEDED)
def test_a_source_is_slimes_if_it_has_what_the_hooks_use(workspace, name):
    slime = parameters_of().slime
    assert all(commit in check_source(slime) for commit in TESTED)
    path = Path("slime", name)
    for word in NEEDED[name].split("|") if NEEDED[name] else ():
        path.write_text(NEEDED[name].replace(word, ""))
        with pytest.raises(UserError, match=word):
            check_source(slime)
    path.unlink()
    with pytest.raises(UserError, match=name):
        check_source(slime)


@pytest.mark.parametrize(
    ("mode", "old", "new"),
    [
        ("sync", "train.py", "train.py"),
        ("async", "train_async.py", None),
        ("fully_async", "train_async.py", "train.py"),
    ],
)
def test_a_mode_is_a_script_of_slimes(workspace, mode, old, new):
    """SLIME 0.4 has one script."""

    def script():
        return command(parameters_of(slime={"mode": mode, "rollout_gpus": 4}), Path("models/base"), Path("run"))[1]

    assert script() == str(workspace / "slime" / old)
    Path("slime/train_async.py").unlink()
    if new is None:
        with pytest.raises(UserError, match=r"slime\.mode"):
            script()
    else:
        assert script() == str(workspace / "slime" / new)


def test_engines_that_outlive_a_job_end_with_it(workspace):
    """SLIME 0.4 keeps them under a name, which `slim_rl.slime.session` frees before and after SLIME's script."""
    parameters, base, folder = parameters_of(), Path("models/base"), Path("/runs/mine")
    assert job_command(parameters, base, folder) == command(parameters, base, folder)
    Path("slime/slime/utils/arguments.py").write_text('parser.add_argument("--rollout-session-id")')
    script = command(parameters, base, folder)
    assert script[script.index("--rollout-session-id") + 1] == str(folder)
    session = [sys.executable, "-m", "slim_rl.slime.session", str(folder)]
    assert job_command(parameters, base, folder) == [*session, *script]
    assert int(environment(parameters.slime)["RAY_JOB_STOP_WAIT_TIME_S"]) > 3  # Ray's own


def test_a_run_leaves_the_last_checkpoint_and_what_the_hooks_read(workspace):
    assert run(parameters_of()) == workspace / "run/hf/2"
    hooks = yaml.safe_load(Path("run/hooks.yaml").read_text())
    assert hooks == {"slim_rl_folder": str(workspace / "run"), "slim_rl_home": str(workspace)}
    read = RunParameters.read(Path("run", PARAMETERS))
    assert read == parameters_of() and read.games["matching"].size == 3
    task = {"game": "matching", "state": {"table": [1]}}
    line = {"prompt": "prompt", "game_id": "g", "metadata": {"task": task}}
    assert [json.loads(line) for line in Path("run/train.jsonl").read_text().splitlines()] == [line]


def test_several_games_come_by_weight_until_every_task_has_come(workspace):
    games = {"matching": {**MATCHING["matching"], "weight": 2}, **KUHN}
    tasks = {name: [Task(f"{name}-{n}") for n in range(count)] for name, count in (("matching", 3), ("kuhn", 2))}
    prepare(parameters_of(games=games), tasks, tasks, Path("run"))
    train, held_out = (
        [json.loads(line) for line in Path("run", f"{name}.jsonl").read_text().splitlines()]
        for name in ("train", "held_out")
    )
    mixed = "matching-0 matching-1 kuhn-0 matching-2 matching-0 kuhn-1"
    assert [line["game_id"] for line in train] == mixed.split()
    assert [line["game_id"] for line in held_out] == ["matching-0", "matching-1", "matching-2", "kuhn-0", "kuhn-1"]


def test_a_game_of_little_weight_does_not_multiply_the_tasks(workspace):
    parameters = parameters_of(games={"matching": {**MATCHING["matching"], "weight": 1000}, **KUHN})
    tasks = {name: [Task(f"{name}-{n}") for n in range(50)] for name in ("matching", "kuhn")}
    prepare(parameters, tasks, tasks, Path("run"))
    trained_on = parameters.train.steps * parameters.train.games_per_step
    lines = Path("run/train.jsonl").read_text().splitlines()
    assert trained_on < len(lines) <= 4 * trained_on  # the filters drop some; SLIME starts again from the first


def save(step, whole=True):
    state = Path(f"run/megatron/rollout/global_dataset_state_dict_{step}.pt")
    for folder in (Path(f"run/hf/{step}"), state.parent):
        folder.mkdir(parents=True, exist_ok=True)
    if whole:
        Path(f"run/hf/{step}/model.safetensors.index.json").touch()
        state.touch()


@pytest.mark.parametrize(("whole", "tracked"), [([19], "19"), ([], None), ([19, 39], "39")])
def test_a_run_killed_while_it_saved_goes_on_from_the_last_whole_checkpoint(workspace, whole, tracked):
    """Megatron says 39 is there; its Hugging Face checkpoint is not always whole. SLIME's failure is a sentence."""
    for step in (19, 39):
        save(step, step in whole)
    tracker = Path("run/megatron/latest_checkpointed_iteration.txt")
    tracker.write_text("39")
    Path("slime/train.py").write_text("raise SystemExit(3)")
    with pytest.raises(UserError, match="exit code 3 before step 60"):
        run(parameters_of(train={"steps": 60}))
    assert (tracker.read_text() if tracker.exists() else None) == tracked


def test_a_continued_run_shows_all_that_does_not_come_again(workspace):
    """The evaluation after the last checkpoint's rollout counts that rollout's update; SLIME does not repeat it."""
    shown, evaluation = [], {"held_out/reward": 0.5}
    for rollout, step, metrics in (
        (0, 0, evaluation),
        (0, 0, {"reward": 1.0}),
        (0, 1, evaluation),
        (1, 1, {"reward": 1.0}),
    ):
        note_metrics(Path("run"), rollout, step, metrics)
    Progress(Path("run"), [0], lambda metrics, step: shown.append((step, *metrics)))
    assert shown == [(0, "held_out/reward"), (0, "reward"), (1, "held_out/reward")]


def test_a_run_is_made_longer_but_not_shorter(workspace):
    save(19)
    save(39)
    assert run(parameters_of(train={"steps": 60})) == workspace / "run/hf/59"
    Path("slime/train.py").write_text("raise SystemExit(3)")
    assert run(parameters_of(train={"steps": 20})) == workspace / "run/hf/19"  # it is there
    with pytest.raises(UserError, match=r"train\.steps is 30.*60.*20, 40, 60"):
        run(parameters_of(train={"steps": 30}))


def test_an_interrupted_run_ends_what_it_started(workspace):
    Path("slime/train.py").write_text(
        "import os, pathlib, time; pathlib.Path('started').write_text(str(os.getpid())); time.sleep(600)"
    )
    parameters_of().write(Path(PARAMETERS))
    code = (
        "import asyncio; from pathlib import Path; from slim_rl.slime import launch\n"
        "from slim_rl.slime.parameters import *; from slim_rl.runtime.cli import told_in_a_sentence\n"
        f"parameters = RunParameters.read(Path({PARAMETERS!r}))\n"
        "with told_in_a_sentence(): asyncio.run(launch.run(parameters, Path('models/base'), {}, {}, Path('run')))"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    started = Path("started")
    assert wait_until(lambda: started.exists() and started.read_text() != "", 60)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) != 0
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)


@pytest.fixture
def games_file(workspace):
    (game,) = load_games(config_of().games, 0).values()
    for purpose in ("train", "evaluate"):
        write_tasks(tasks_path(Path("data/games"), game, purpose), game.taskset.tasks(purpose, 8))
    Path("params.yaml").write_text(yaml.safe_dump(config_of().model_dump(mode="json")))
    return game


def test_a_dry_run_prints_a_command_that_can_be_pasted(workspace, games_file, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["slime", "--dry-run"])
    stages.slime.main()
    typed = capsys.readouterr().out
    words = shlex.split(typed)
    assert words[words.index("--hf-checkpoint") + 1] == str(workspace / "models/base")
    assert len(Path(words[words.index("--prompt-data") + 1]).read_text().splitlines()) == 8
    subprocess.run(["bash", "-c", typed], check=True)  # the script in SLIME's place takes it
    assert Path(".work/slime/dry-run/hf/2/model.safetensors.index.json").exists()


def test_slimes_processes_find_the_users_modules_and_the_ledgers(workspace, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "mine")
    variables = environment(parameters_of().slime)
    assert variables["SLIM_RL_WORK"] == str(workspace / ".work")  # wherever Ray starts them
    paths = variables["PYTHONPATH"].split(":")
    assert {str(workspace / "slime"), str(workspace), str(workspace / "mine"), str(ROOT)} < set(paths)


def test_a_cluster_that_is_there_gets_a_job(workspace, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    for changes in ({"slime": {"ray_address": "http://head:8265"}}, {}):
        words = shown(parameters_of(**changes), Path("models/base"), Path("run"))
        ray = [sys.executable, "-m", "ray.scripts.scripts"]
        assert words[:7] == [*ray, "job", "submit", "--address", "http://head:8265"]
        assert "sk-secret" not in " ".join(words)
        monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://head:8265")


class JobServer:
    """Ray's job server: a log in parts, and each connection to it sees one more before it breaks."""

    def __init__(self, parts=3):
        self.calls, self.parts, self.seen, self.job = [], parts, 0, None
        self.app = web.Application()
        self.app.add_routes(
            [
                web.post("/api/jobs/", self.submit),
                web.get("/api/jobs/{name}", self.status),
                web.post("/api/jobs/{name}/stop", self.stop),
                web.get("/api/jobs/{name}/logs/tail", self.log),
            ]
        )

    async def submit(self, request):
        self.calls.append("submit")
        self.job = await request.json()
        return web.json_response({}) if self.parts else web.Response(status=500, text="no room")

    async def status(self, request):
        if self.job is None or request.match_info["name"] != self.job["submission_id"]:
            return web.Response(status=404)
        ended = "STOPPED" if "stop" in self.calls else "SUCCEEDED"
        return web.json_response({"status": "RUNNING" if self.seen < self.parts and ended == "SUCCEEDED" else ended})

    async def stop(self, request):
        self.calls.append("stop")
        return web.json_response({})

    async def log(self, request):
        self.calls.append("log")
        self.seen += 1
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        for part in range(self.seen):
            await socket.send_str(f"part {part}\n")
        if self.seen < self.parts:
            request.transport.abort()
        else:
            subprocess.run(shlex.split(self.job["entrypoint"]), check=True)
            await socket.close()
        return socket


def on_cluster(server, stopped_after=None):
    """Run SLIME as a job; what `launch.run` returns."""

    async def go():
        async with TestServer(server.app) as running:
            parameters = parameters_of(slime={"ray_address": str(running.make_url(""))})
            going = asyncio.create_task(launch.run(parameters, Path("models/base"), TASKS, TASKS, Path("run")))
            while stopped_after and stopped_after not in server.calls and not going.done():
                await asyncio.sleep(0.01)
            if stopped_after:
                going.cancel()
            return await going

    return asyncio.run(go())


def test_a_broken_connection_to_the_log_does_not_end_the_job(workspace, capsys):
    """A new connection sends the log from its beginning; no line is shown twice."""
    server = JobServer()
    assert on_cluster(server) == workspace / "run/hf/2"
    assert server.calls == ["submit", "log", "log", "log"]
    assert server.job["runtime_env"]["env_vars"]["SLIM_RL_WORK"] == str(workspace / ".work")
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("part")] == [f"part {n}" for n in range(3)]


def test_a_job_whose_follower_was_killed_is_followed_again(workspace):
    server = JobServer(parts=1)
    parameters = parameters_of()
    prepare(parameters, TASKS, TASKS, workspace / "run")
    entrypoint = shlex.join(command(parameters, workspace / "models/base", workspace / "run"))
    server.job = {"submission_id": "slim-rl-before", "entrypoint": entrypoint}
    Path("run/job.txt").write_text("slim-rl-before")
    assert on_cluster(server) == workspace / "run/hf/2"
    assert server.calls == ["log"]


class Days(JobServer):
    """The job has these states, a quarter of an hour apart. Where one is None, the server fails, and the connection to the
    silent log breaks too, unless it is `half_open`."""

    def __init__(self, monkeypatch, states, half_open=False):
        super().__init__()
        self.states, self.state, self.half_open, self.hours = iter(states), "RUNNING", half_open, 0.0
        monkeypatch.setattr("slim_rl.slime.job.time", SimpleNamespace(monotonic=lambda: 3600 * self.hours))

    async def status(self, request):
        self.hours += 0.25
        self.state = next(self.states)
        if self.state:
            return web.json_response({"status": self.state})
        if not self.half_open and self.transport:
            self.transport.abort()
        return web.Response(status=503)

    async def log(self, request):
        if self.state is None:
            return web.Response(status=503)
        socket, self.transport = web.WebSocketResponse(), request.transport
        await socket.prepare(request)
        while request.transport and (self.state == "RUNNING" or self.half_open):
            await asyncio.sleep(0.01)
        return socket


class LosesItsLog(JobServer):
    """The first connection to the log is silent for ever, and the job ends with the second."""

    async def status(self, request):
        return web.json_response({"status": "RUNNING" if len(self.calls) < 2 else "SUCCEEDED"})

    async def log(self, request):
        self.calls.append("log")
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        while self.calls == ["log"] and request.transport:
            await asyncio.sleep(0.01)
        if request.transport:
            await socket.send_str("the end")
        return socket


def follow(server):
    """Follow a job; how it ended."""

    async def go():
        async with TestServer(server.app) as running, Job(str(running.make_url("")), "name", 0.01) as job:
            return await asyncio.wait_for(job.follow(), 60)

    return asyncio.run(go())


def test_a_short_outage_after_hours_of_answers_does_not_end_a_run(monkeypatch):
    states = [*["RUNNING"] * 8, None, None, "RUNNING", "SUCCEEDED"]
    assert follow(Days(monkeypatch, states)) == "SUCCEEDED"


def test_a_server_that_has_been_silent_for_an_hour_is_given_up(monkeypatch):
    """Also if the connection to its log seems to be open."""
    states = itertools.chain(["RUNNING"], itertools.repeat(None))
    with pytest.raises(UserError, match="has not answered for 60 minutes"):
        follow(Days(monkeypatch, states, half_open=True))


def test_a_log_that_has_been_silent_for_long_gets_a_new_connection(monkeypatch, capsys):
    monkeypatch.setattr("slim_rl.slime.job.SILENCE_SECONDS", 0.5)
    assert follow(LosesItsLog()) == "SUCCEEDED"
    assert "the end" in capsys.readouterr().out


def test_a_job_that_may_be_running_keeps_its_files(workspace):
    """If the server does not answer, nobody knows; another job must not work in the same folder."""
    parameters = parameters_of(slime={"ray_address": f"http://127.0.0.1:{free_port()}"})
    Path("run").mkdir()
    Path("run/job.txt").write_text("slim-rl-before")
    with pytest.raises(UserError, match=r"slim-rl-before still works in .*job\.txt"):
        run(parameters)
    assert [path.name for path in Path("run").iterdir()] == ["job.txt"]
    assert Path("run/job.txt").read_text() == "slim-rl-before"


def test_an_interrupt_stops_the_job(workspace):
    server = JobServer(parts=10**9)
    with pytest.raises(asyncio.CancelledError):
        on_cluster(server, stopped_after="log")
    assert server.calls[-1] == "stop"


def test_an_interrupt_is_one_also_where_the_server_is_gone(capsys):
    async def go():
        async with Job(f"http://127.0.0.1:{free_port()}", "name", 0.01) as job:
            going = asyncio.create_task(job.follow())
            await asyncio.sleep(0.1)
            going.cancel()
            await going

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(go())
    assert "may still run: its server does not answer" in capsys.readouterr().out


def test_a_job_that_the_cluster_refuses(workspace):
    server = JobServer(parts=0)
    with pytest.raises(UserError, match="no room"):
        on_cluster(server)


def test_the_slurm_script_asks_for_the_nodes_and_is_sound(workspace):
    parameters = parameters_of(slime={"nodes": 2, "rollout_gpus": 12})
    script = sbatch(parameters, "qwen3-4b-8gpu")
    assert "#SBATCH --nodes=4" in script and "#SBATCH --gpus-per-node=8" in script and "#SBATCH --requeue" in script
    assert "repro PROFILE=qwen3-4b-8gpu\n" in script
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    pyxis = sbatch(parameters, None, pyxis_image="slimerl/slime:latest")
    assert pyxis.count("--container-image=slimerl/slime:latest") == 2  # the head, and the other nodes
    apptainer = sbatch(parameters, None, apptainer_image="my slime.sif")
    assert apptainer.count(f"apptainer exec --nv --bind {ROOT}:{ROOT} 'my slime.sif'") == 2


def test_the_train_stage_leaves_what_the_local_backend_leaves(workspace, games_file, model, tokenizer):
    shutil.rmtree("models/base")
    save_model(Path("models/base"), model, tokenizer)
    stages.train.main()
    trained, _ = load_model(Path("models/trained"))
    assert all(torch.equal(a, b) for a, b in zip(trained.parameters(), model.parameters(), strict=True))
    assert [e.step for e in read_episodes(Path("data/rollouts"))] == [0, 1, 2]
    curve = Path("reports/training/plots/metrics/reward.tsv").read_text().split()
    assert curve == ["step", "reward", "0", "0.0", "1", "0.1", "2", "0.2"]
    (table,) = stages.analyze.held_out(games_file).values()  # the report shows it
    assert table.to_dict("list") == {"step": [1, 2, 3], "reward": [0.0, 0.2, 0.4]}


SERVICE = {"partner": {"model": "gpt-4.1", "max_requests_per_minute": 10, "max_cost_dollars": 5.0}}
FASTER = {"partner": {"model": "gpt-4.1", "max_requests_per_minute": 1000, "max_cost_dollars": 50.0}}


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ({}, {"train": {"steps": 600, "checkpoint_minutes": 5, "microbatch_tokens": 100, "wandb_project": "p"}}, True),
        ({}, {"cores": 8, "concurrency": 16}, True),
        ({}, {"slime": {"save_every": 5, "evaluate_every": 3, "arguments": ["--lr", "1"]}}, True),
        ({"services": SERVICE}, {"services": FASTER}, True),
        ({}, {"services": SERVICE}, False),
        ({}, {"train": {"learning_rate": 1e-6}}, False),
        ({}, {"games": {"matching": {"max_turns": 9}}}, False),
    ],
)
def test_a_run_continues_unless_its_episodes_or_updates_change(games_file, tokenizer, before, after, same):
    tokenizer.save_pretrained("models/base")
    first, second = (
        stages.train.work(config, load_games(config.games, config.seed))
        for config in (config_of(**before), config_of(**after))
    )
    assert (first == second) == same
