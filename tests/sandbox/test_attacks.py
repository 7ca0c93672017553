"""No attack gets through the sandbox: with bubblewrap's namespaces and without, as root and as another user."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMESPACES = ["unshare", *([] if os.getuid() == 0 else ["--map-root-user"]), "--mount", "--pid", "--fork", "--mount-proc",
              "--kill-child", "--propagation", "private"]  # fmt: skip
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
LEAST = 38
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not shutil.which("unshare") or subprocess.run([*NAMESPACES, "true"], capture_output=True).returncode != 0,
        reason="attacks need mount and process namespaces of their own, and unshare cannot make them here",
    ),
]


def through(way, user=(), python=sys.executable):
    """The attacks that get through."""
    # The shell is the first process of its namespace, so it reaps what bubblewrap leaves.
    command = [*NAMESPACES, "bash", "-c", '"$@"; exit $?', "bash", *user, python, "-m", "tests.sandbox.attacks", way]
    paths = [str(ROOT), sysconfig.get_path("purelib")]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(paths), "API_KEY": "sk-not-for-programs"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def python_of_all():
    """A Python that another user may run, with our code and its libraries."""
    env = {"PYTHONPATH": f"{ROOT}:{sysconfig.get_path('purelib')}"}
    for python in (sys.executable, f"/usr/bin/python{sysconfig.get_python_version()}"):
        command = [*NOBODY, python, "-c", "import os, sys, pydantic, aiohttp; open(os.path.realpath(sys.executable))"]
        if Path(python).exists() and subprocess.run(command, capture_output=True, env=env, cwd="/").returncode == 0:
            return python
    pytest.skip("another user may read no Python with our libraries here")


@pytest.mark.parametrize("way", ["namespaces", "plain"])
@pytest.mark.parametrize("user", ["own", "other"])
def test_no_attack_gets_through(way, user):
    if way == "namespaces" and not shutil.which("bwrap"):
        pytest.skip("bubblewrap is not installed")
    if way == "namespaces" and subprocess.run(["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"]).returncode:
        pytest.skip("bubblewrap's namespaces do not work here")
    other = (NOBODY, python_of_all()) if user == "other" else ()
    assert through(way, *other) == []


def test_the_same_attacks_get_through_without_a_sandbox():
    assert len(through("subprocess")) >= LEAST
