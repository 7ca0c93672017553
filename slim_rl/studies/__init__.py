"""The studies: a folder each. A study is a question put to a game: which series to play, how to judge them, how to
show them. A game's taskset names its study.

A study is a package with three modules: `parameters`, `plan` (what to play) and `reporting` (what was found); see
`slim_rl.studies.study`.
"""

from collections.abc import Mapping
from types import ModuleType
from typing import Any, Literal

from slim_rl.core.game import Taskset
from slim_rl.core.parameters import Section
from slim_rl.runtime.imports import module_of

DEFAULT = "accuracy"
"""The study of a game that names none."""


def study_of(taskset: Taskset) -> str:
    """The name of the study that judges a game."""
    return getattr(taskset, "study", DEFAULT)


def study_parameters(name: str, given: Any) -> Section:
    """`given` as the parameters of the study `name`.

    Raises:
        ValueError: there is no such study.
        pydantic.ValidationError: a parameter is unknown or out of bounds.
    """
    return load_study(name, "parameters").Parameters.model_validate(given or {})


def parameters_of(name: str, studies: Mapping[str, Section]) -> Section:
    """The parameters of the study `name`: those in `studies`, or else its defaults."""
    return studies[name] if name in studies else study_parameters(name, {})


def load_study(name: str, part: Literal["parameters", "plan", "reporting"]) -> ModuleType:
    """A module of a study. Raises ValueError: there is no such study."""
    return module_of(__name__, "study", name, f".{part}", needs=_NEEDS[part])


_NEEDS = {"parameters": ("Parameters",), "plan": ("series",), "reporting": ("report",)}
