"""A sentence in place of a traceback, where memory runs out."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from slim_rl.core.errors import UserError


@contextmanager
def enough_memory(when: str, remedy: str) -> Iterator[None]:
    """Raises UserError: memory ran out in here.

    Args:
        when: what was under way.
        remedy: parameters that take less.
    """
    try:
        yield
    except RuntimeError as error:
        # On a processor torch has no class of its own for it.
        if not isinstance(error, torch.OutOfMemoryError) and "you tried to allocate" not in str(error):
            raise
        raise UserError(
            f"Memory ran out {when}. Free some, and the same command goes on from what was saved; or {remedy}, with which "
            "this stage begins anew."
        ) from None
