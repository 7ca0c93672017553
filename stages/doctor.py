"""What this machine has, what is missing, and what a run would choose. Exit code 1: a run of the default would fail."""

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal, NamedTuple

from packaging.requirements import Requirement

from slim_rl.config import PATH, load_config
from slim_rl.core.errors import UserError
from slim_rl.runtime.cli import run_stage
from slim_rl.runtime.machine import cores, processor

Verdict = Literal["ok", "note", "missing"]
_GIGABYTE = 10**9
_KEYS = ("OPENAI_API_KEY", "OPENREWARD_API_KEY", "WANDB_API_KEY", "HF_TOKEN")
_OFFLINE = ("HF_HUB_OFFLINE", "WANDB_MODE", "TRANSFORMERS_OFFLINE")
_NEEDED_GIGABYTES = 4
"""Memory of the default run."""


class Row(NamedTuple):
    verdict: Verdict
    what: str
    text: str


def main() -> None:
    rows = [*_packages(), *_machine(), *_gpu(), *_programs(), *_surroundings(), *_workspace()]
    width = max(len(row.what) for row in rows)
    for row in rows:
        print(f"{row.verdict:8}{row.what:{width}}  {row.text}")
    if any(row.verdict == "missing" for row in rows):
        sys.exit(1)


def _packages() -> Iterator[Row]:
    """Whether what pyproject.toml requires is installed."""
    yield Row("ok", "Python", f"{platform.python_version()}, {sys.executable}")
    wrong = []
    for line in requires("slim-rl") or ():
        wanted = Requirement(line)
        if wanted.marker and not wanted.marker.evaluate({"extra": ""}):
            continue
        try:
            if version(wanted.name) not in wanted.specifier:
                wrong.append(f"{wanted.name} is {version(wanted.name)}, wanted is {wanted.specifier}")
        except PackageNotFoundError:
            yield Row("missing", "package", f"{wanted.name} is not installed: pip install '{wanted}'")
    yield Row("note" if wrong else "ok", "packages", "; ".join(wrong) or "as pyproject.toml wants them")


def _machine() -> Iterator[Row]:
    import psutil

    memory = psutil.virtual_memory()
    yield Row("ok" if cores() >= 2 else "note", "cores", f"{cores()}, {processor()}; `cores` is 2 by default")
    free = memory.available / _GIGABYTE
    text = f"{free:.1f} of {memory.total / _GIGABYTE:.1f} GB are free; the default run needs {_NEEDED_GIGABYTES}"
    yield Row("ok" if free >= _NEEDED_GIGABYTES else "note", "memory", text)
    disk = shutil.disk_usage(".").free / _GIGABYTE
    yield Row("ok" if disk >= 1 else "missing", "disk", f"{disk:.0f} GB are free here")


def _gpu() -> Iterator[Row]:
    import torch

    if not torch.cuda.is_available():
        yield Row("note", "GPU", "none; models run on the processor")
    for number in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(number)
        memory, bf16 = card.total_memory / _GIGABYTE, torch.cuda.is_bf16_supported(including_emulation=False)
        attention = "" if card.major >= 8 else ", no flash attention 2"
        yield Row("ok", "GPU", f"{card.name}, {memory:.0f} GB, {'bf16' if bf16 else 'fp16'}{attention}")


def _programs() -> Iterator[Row]:
    from slim_rl.sandbox.local import namespaces_work

    git = shutil.which("git")
    yield Row("ok" if git else "note", "git", git or "not installed; only experiments (`make seeds`) need it")
    try:
        if namespaces_work():
            text = "with bubblewrap's namespaces"
        elif shutil.which("bwrap"):
            text = "with Landlock and seccomp; bubblewrap is installed, but may not make namespaces here"
        else:
            text = "with Landlock and seccomp; bubblewrap, which is not installed, would add namespaces"
        yield Row("ok", "sandbox", text)
    except (UserError, OSError) as error:
        yield Row("note", "sandbox", f"none, so games that run programs cannot be played here: {error}")
    if not shutil.which("chromium"):
        yield Row("note", "Chromium", "not installed; only tests of the report need it")


def _surroundings() -> Iterator[Row]:
    yield Row(
        "ok", "keys", ", ".join(name for name in _KEYS if os.environ.get(name)) or "none is set; the default needs none"
    )
    if offline := [f"{name}={os.environ[name]}" for name in _OFFLINE if os.environ.get(name)]:
        yield Row("note", "offline", f"{', '.join(offline)}: checkpoints must be on this machine")
    if url := os.environ.get("PREFECT_API_URL"):
        yield Row("note", "Prefect", f"flows go to {url}")


def _workspace() -> Iterator[Row]:
    if not os.access(".", os.W_OK):
        yield Row("missing", "folder", "it cannot be written")
    if not Path("params.yaml").is_file():
        yield Row("note", "folder", "no params.yaml here; `slim-rl init DIR` makes a folder to work in")
        return
    try:
        config = load_config(PATH)
    except UserError as error:
        yield Row("missing", "params.yaml", str(error))
        return
    yield Row("ok", "params.yaml", f"plays {', '.join(config.games)} with {config.model.base}, {config.train.backend}")


if __name__ == "__main__":
    run_stage(main, __doc__)
