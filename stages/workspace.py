"""A DVC workspace in use: one run at a time, with the parameters of that run."""

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from slim_rl.config import PATH, load_config, read_yaml
from slim_rl.core.errors import UserError
from slim_rl.runtime.files import write_whole

PROFILES, SET_ASIDE, LOCK = Path("conf"), Path(".work/params.yaml"), Path(".work/run.lock")
_NOTE = f"# Written for a run in progress. Edit {SET_ASIDE} instead: it becomes {PATH} again when the run ends.\n"


@contextmanager
def sole_run(log: Callable[[str], None]) -> Iterator[int]:
    """Wait until no other run uses the workspace; yields the lock's file descriptor.

    The operating system holds the lock. Child processes that inherit the descriptor hold it too, so it ends with
    the last of them, however they end.
    """
    LOCK.parent.mkdir(exist_ok=True)
    with LOCK.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log(f"Another run uses the workspace {Path.cwd()}; waiting for it to end.")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


@contextmanager
def overridden(parameters: Mapping[str, Any], profile: str | None = None) -> Iterator[None]:
    """Lay a profile and then `parameters` (by dotted name) over params.yaml, and put the file back at the end.

    A run that was killed leaves the original file set aside; the next run puts it back first.

    Raises:
        UserError: there is no such profile or parameter, or a value is wrong.
    """
    if SET_ASIDE.exists():
        os.replace(SET_ASIDE, PATH)
    if not parameters and profile is None:
        yield
        return
    values = composed(_sections(PATH), profile)
    original = PATH.read_bytes()
    for name, value in parameters.items():
        *sections, last = name.split(".")
        inner = values
        for section in sections:
            if not isinstance(inner.setdefault(section, {}), dict):
                raise UserError(f"{name} cannot be set: {section} is not a section of {PATH}.")
            inner = inner[section]
        inner[last] = value
    text = _NOTE + yaml.safe_dump(values, sort_keys=False)
    write_whole(SET_ASIDE, lambda part: part.write_bytes(original))
    try:
        write_whole(PATH, lambda part: part.write_text(text, encoding="utf-8"))
        load_config()
        yield
    finally:
        os.replace(SET_ASIDE, PATH)


def composed(values: dict[str, Any], profile: str | None) -> dict[str, Any]:
    """`values` with a profile of conf/ laid over them. Only the games that a profile names are played.

    Raises:
        UserError: there is no such profile.
    """
    if profile is None:
        return values
    path = PROFILES / f"{profile}.yaml"
    if not path.is_file():
        names = ", ".join(sorted(file.stem for file in PROFILES.glob("*.yaml")))
        raise UserError(f"There is no profile {profile}; {PROFILES}/ has {names}.")
    overlay = _sections(path)
    merged = _merged(values, overlay)
    if "games" in overlay:
        merged["games"] = {name: merged["games"][name] for name in overlay["games"]}
    return merged


def _sections(path: Path) -> dict[str, Any]:
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise UserError(f"{path} must have sections such as `train:`, but is a {type(values).__name__}.")
    return values


def _merged(below: Any, above: Any) -> Any:
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    return {**below, **{name: _merged(below.get(name), value) for name, value in above.items()}}
