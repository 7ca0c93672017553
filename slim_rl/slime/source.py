"""SLIME's source: whether the hooks fit it."""

import re
import subprocess
from pathlib import Path

from slim_rl.core.errors import UserError
from slim_rl.slime.config import SlimeConfig

KNOWN = "0.3.1 to 0.4.0"
TESTED = {"a6272da0": "v0.3.1", "624b824a": "38 commits after v0.3.1"}
"""The commits that the hooks were tested with."""
NEEDED = {
    "train.py": "",
    "slime/rollout/sglang_rollout.py": "class GenerateState|def get_model_url|def generate_and_rm_group",
    "slime/rollout/base_types.py": "class RolloutFnTrainOutput",
    "slime/rollout/filter_hub/base_types.py": "class DynamicFilterOutput|def call_dynamic_filter",
    "slime/utils/types.py": "def append_response_tokens",
}
"""Files and what the hooks use of each."""


def directory(slime: SlimeConfig) -> Path:
    return Path(slime.directory or "").expanduser().resolve()


def script(slime: SlimeConfig) -> Path:
    """The script that trains. SLIME 0.4 has one for all modes.

    Raises:
        UserError: this SLIME cannot sample one step ahead.
    """
    asynchronous = directory(slime) / "train_async.py"
    if slime.mode != "sync" and asynchronous.is_file():
        return asynchronous
    if slime.mode == "async":
        raise UserError(
            f"slime.mode is async, but SLIME in {directory(slime)} has no train_async.py; take fully_async or sync."
        )
    return directory(slime) / "train.py"


def keeps_engines(slime: SlimeConfig) -> bool:
    """Whether SLIME's engines outlive a job that fails or is stopped: 0.4."""
    return "--rollout-session-id" in (_text(directory(slime) / "slime/utils/arguments.py") or "")


def check_source(slime: SlimeConfig) -> str:
    """Check that SLIME's source has what the hooks use.

    Returns:
        The version and commit, and whether the hooks were tested with it.

    Raises:
        UserError: something is missing; the sentence names it.
    """
    folder = directory(slime)
    texts = {name: _text(folder / name) for name in NEEDED}
    missing = [name for name, text in texts.items() if text is None]
    missing += [word for name, words in NEEDED.items() for word in words.split("|") if word not in (texts[name] or "")]
    if missing:
        raise UserError(
            f"slime.directory is {folder}, but must be the folder of SLIME's source, {KNOWN}, and it has no "
            f"{missing[0]}; get it with git clone --branch v0.3.1 https://github.com/THUDM/slime, or use SLIME's "
            "container image."
        )
    version, commit = re.search(r"version\s*=\s*[\"']([^\"']+)", _text(folder / "setup.py") or ""), _commit(folder)
    tested = ", ".join(f"{commit} ({name})" for commit, name in TESTED.items())
    known = "tested" if commit in TESTED else f"not tested. Written for {KNOWN}, tested with {tested}"
    return f"SLIME {version[1] if version else 'of an unknown version'}, commit {commit}: {known}."


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _commit(folder: Path) -> str:
    command = ["git", "-C", str(folder), "rev-parse", "--show-toplevel", "HEAD"]
    try:
        top, commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[:2]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    # A source without .git may lie inside another repository.
    return commit[:8] if Path(top) == folder else "unknown"
