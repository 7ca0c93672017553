"""The studies: a folder each. A study is a question put to a game: which series to play, how to judge them, how to
show them. A game's taskset names its study.

A study is a package with three modules: `parameters`, `plan` (what to play) and `reporting` (what came of it). A
user's own may also be one module with all of it. See `slim_rl.evaluation.study`.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Literal

from slim_rl.core.game import Taskset
from slim_rl.core.parameters import Section
from slim_rl.runtime.imports import folders_in, module_of


def study_of(taskset: Taskset) -> str:
    """The name of the study that judges a game."""
    return taskset.study


def study_parameters(name: str, values: Any) -> Section:
    """The parameters of the study `name` with these values.

    Raises:
        ValueError: there is no such study.
        pydantic.ValidationError: a parameter is unknown or out of bounds.
    """
    return load_study(name, "parameters").Parameters.model_validate(values or {})


def parameters_of(name: str, studies: Mapping[str, Section]) -> Section:
    """The parameters of the study `name`, by default its own defaults."""
    return studies[name] if name in studies else study_parameters(name, {})


def load_study(name: str, part: Literal["parameters", "plan", "reporting"]) -> ModuleType:
    """A module of a study, or the only one. Raises ValueError: there is no such study."""
    spec = find_spec(name) if name not in folders_in(__name__) and all(name.split(".")) else None
    one_module = spec is not None and spec.submodule_search_locations is None
    return module_of(__name__, "study", name, "" if one_module else f".{part}", needs=_NEEDS[part])


_NEEDS = {"parameters": ("Parameters",), "plan": ("series",), "reporting": ("report",)}
