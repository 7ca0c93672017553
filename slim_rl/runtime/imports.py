"""Parts that a parameter names: ours by name, the user's own by import path."""

import pkgutil
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from slim_rl.core.errors import UserError


def check_name(parameter: str, name: str, ours: Iterable[str]) -> None:
    """Raises ValueError unless `name` is one of `ours` or looks like an import path."""
    if name not in ours and ":" not in name:
        raise ValueError(
            f"{parameter} is {name!r}; name one of {', '.join(ours)}, or the import path of your own, "
            "my_module:my_function"
        )


def folders_in(package: str) -> list[str]:
    """The names of the packages directly in a package: our games, or our studies."""
    return sorted(module.name for module in pkgutil.iter_modules(import_module(package).__path__) if module.ispkg)


def module_of(package: str, kind: str, name: str, part: str = "", needs: Sequence[str] = ()) -> ModuleType:
    """The module of a game or a study: a folder in `package`, or a module of the user's own.

    Args:
        kind: what it is, for sentences.
        part: of a package, one of its modules: ".plan".
        needs: what the module must define.

    Raises:
        ValueError: there is no such module, or it lacks something; the sentence says what.
    """
    ours = folders_in(package)
    if name in ours:
        return import_module(f"{package}.{name}{part}")
    what = f"{kind} {name!r}; name one of {', '.join(ours)}, or the import path of your own"
    module = _own(name, what)
    if part and hasattr(module, "__path__"):
        module = _own(name + part, what)
    if missing := [need for need in needs if not hasattr(module, need)]:
        raise ValueError(f"the module {module.__name__} is not a {kind}: it has no {' and no '.join(missing)}")
    return module


def function_at(path: str) -> Callable[..., Any]:
    """The function at an import path, `my_module:my_function`.

    Raises:
        UserError: there is no such module, or it has no such function.
    """
    module, _, name = path.partition(":")
    try:
        function = getattr(_own(module, f"module {module!r}, which {path!r} names"), name, None)
    except ValueError as error:
        raise UserError(f"T{str(error)[1:]}.") from None
    if not callable(function):
        raise UserError(f"The module {module!r} has no function {name!r}.")
    return function


def _own(path: str, what: str) -> ModuleType:
    """The module at an import path. Raises ValueError: there is none."""
    try:
        if path and all(path.split(".")):
            return import_module(path)
        missing = path
    except ModuleNotFoundError as error:
        if error.name is None or not f"{path}.".startswith(f"{error.name}."):
            raise ValueError(f"the module {path} cannot be imported: {error}") from error
        missing = error.name
    except Exception as error:  # whatever the user's module does
        raise ValueError(f"the module {path} cannot be imported: {type(error).__name__}: {error}") from error
    raise ValueError(f"there is no {what} (Python finds no module {missing!r}; is it on PYTHONPATH?)")
