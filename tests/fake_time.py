"""An event loop whose clock jumps to the next timer instead of waiting for it.

For code that waits with asyncio and for nothing outside of the loop.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list:
        ready = super().select(0 if timeout is not None else None)
        if not ready and timeout:
            self.now += timeout
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run_in_fake_time(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. The clock starts at 0."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(work)


def now() -> float:
    """Seconds by the running loop's clock."""
    return asyncio.get_running_loop().time()
