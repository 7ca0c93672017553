"""Parts that a parameter names: ours by name, the user's own by import path."""

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from slim_rl.core.errors import UserError


def check_name(parameter: str, name: str, ours: Iterable[str]) -> None:
    """Raises ValueError unless `name` is one of `ours` or looks like an import path."""
    if name not in ours and ":" not in name:
        raise ValueError(
            f"{parameter} is {name!r}; name one of {', '.join(ours)}, or the import path of your own, "
            "my_module:my_function"
        )


def function_at(path: str) -> Callable[..., Any]:
    """The function at an import path, `my_module:my_function`.

    Raises:
        UserError: there is no such module, or it has no such function.
    """
    module, _, name = path.partition(":")
    try:
        found = getattr(import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):  # the user's module lacks one
            raise
        raise UserError(f"There is no module {module!r}, which {path!r} names. Is it on PYTHONPATH?") from None
    except ValueError:  # an empty name
        found = None
    if not callable(found):
        raise UserError(f"The module {module!r} has no function {name!r}.")
    return found
