"""The studies: a folder each. A study is a question put to a game: which series to play, how to judge them, how to
show them. A game's taskset names its study."""

import pkgutil
from importlib import import_module
from types import ModuleType
from typing import Any

from slim_rl.core.parameters import Section


def study_parameters(name: str, given: Any) -> Section:
    """`given` as the parameters of the study `name`.

    Raises:
        ValueError: there is no such study.
        pydantic.ValidationError: a parameter is unknown or out of bounds.
    """
    return import_module(f"{_path(name)}.parameters").Parameters.model_validate(given or {})


def load_study(name: str) -> ModuleType:
    """The module of a study; see `slim_rl.studies.study.Study`. Raises ValueError: there is no such study."""
    return import_module(_path(name))


def _path(name: str) -> str:
    ours = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)
    if name in ours:
        return f"{__name__}.{name}"
    if "." in name:
        return name
    raise ValueError(f"there is no study {name!r}; name one of {', '.join(ours)}, or an import path")
