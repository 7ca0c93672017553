"""Which SLIME this is."""

import re
import subprocess
from pathlib import Path

from slim_rl.core.errors import UserError

TESTED = {"a6272da0": "the tag v0.3.1", "624b824a": "38 commits after v0.3.1"}
"""By the first digits of the commit; the second one still calls itself 0.3.1."""
_VERSION = "0.3.1"
_SCRIPTS = ("train.py", "train_async.py")


def check_version(directory: Path) -> str:
    """Check that SLIME's source in `directory` is of a version that the hooks fit.

    Returns:
        A sentence about the version that was found.

    Raises:
        UserError: it is another version, or not SLIME's source at all.
    """
    if missing := [script for script in _SCRIPTS if not (directory / script).is_file()]:
        raise UserError(
            f"slime.directory is {directory}, but must be the folder of SLIME's source, and it has no "
            f"{missing[0]}; get it with git clone --branch v{_VERSION} https://github.com/THUDM/slime, or use "
            "SLIME's container image."
        )
    setup = directory / "setup.py"
    text = setup.read_text(encoding="utf-8") if setup.is_file() else ""
    found = re.search(r"version\s*=\s*[\"']([^\"']+)", text)
    version = found[1] if found else "unknown"
    if version != _VERSION:
        raise UserError(
            f"SLIME in {directory} is version {version}, but the hooks are made for {_VERSION}; take it with "
            f"git -C {directory} checkout v{_VERSION}."
        )
    commit = _commit(directory)
    if commit is None:
        return f"SLIME {version}, commit unknown: {directory} is no git repository of this user."
    name = next((name for start, name in TESTED.items() if commit.startswith(start)), None)
    if name is None:
        tested = ", ".join(f"{start} ({name})" for start, name in TESTED.items())
        return f"SLIME {version}, commit {commit[:8]}, with which this was not tested; it was with {tested}."
    return f"SLIME {version}, commit {commit[:8]}: {name}."


def _commit(directory: Path) -> str | None:
    command = ["git", "-C", str(directory), "rev-parse", "--show-toplevel", "HEAD"]
    try:
        top, commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[:2]
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit if Path(top) == directory.resolve() else None  # a source without .git inside another repository
