"""The studies: a folder each. A study is a question put to a game: which series to play, how to judge them, how to
show them. A game's taskset names its study.

A study is a package with three modules: `parameters`, `plan` (what to play) and `reporting` (what came of it). A
user's own may also be one module with all of it. See `slim_rl.evaluation.study`.
"""

from collections.abc import Mapping
from types import ModuleType
from typing import Any, Literal

from slim_rl.core.parameters import Section
from slim_rl.runtime.code import module_file
from slim_rl.runtime.imports import folders_in, module_of


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
    return module_of(__name__, "study", name, f".{part}", needs=PARTS[part])


def study_module(name: str, part: str) -> str:
    """The name of a module of a study, or of the only one."""
    if name in folders_in(__name__):
        return f"{__name__}.{name}.{part}"
    return f"{name}.{part}" if _in_parts(name) else name


def _in_parts(name: str) -> bool:
    """Whether a study of the user's own is a package, not one module."""
    file = module_file(name)
    return file is None or file.name == "__init__.py"


PARTS = {"parameters": ("Parameters",), "plan": ("series",), "reporting": ("report",)}
"""The modules of a study, and what each must define."""
