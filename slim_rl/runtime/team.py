"""Data parallelism: several processes run the same stage, share its episodes and add up its gradients.

For models so small that two threads spend their time waiting for each other. The numbers depend on how many processes
there are, and not on which of them is faster.
"""

import asyncio
import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

from slim_rl.core.errors import UserError

if TYPE_CHECKING:  # torch takes seconds to import, and what plays with services alone does without it
    import torch

T = TypeVar("T")


@dataclass(frozen=True)
class Team:
    """One process's place among those that run a stage. All of them must call `gather`, `lead`, `agree` and `add` in
    the same order."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process shows progress and writes files. The others only compute."""
        return self.rank == 0

    def share(self, items: Sequence[T], cost: Callable[[T], float] = lambda item: 1.0) -> list[T]:
        """This process's items, in their order; the costs of all shares are about the same."""
        falling = sorted(range(len(items)), key=lambda i: cost(items[i]), reverse=True)
        return [items[i] for i in sorted(falling[self.rank :: self.size])]

    async def gather(self, own: T) -> list[T]:
        """The value of each process, by rank."""
        if self.size == 1:
            return [own]
        import torch.distributed as dist

        waiting = dist.barrier(async_op=True)
        while not waiting.is_completed():
            await asyncio.sleep(0.005)
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, own)
        return values

    async def lead(self, own: T) -> T:
        """The value of the first process."""
        return (await self.gather(own if self.leads else None))[0]  # type: ignore[return-value]

    async def agree(self, failure: Exception | None) -> None:
        """Go on if no process failed.

        Raises:
            Exception: this process's own failure, else that of another: a UserError as it is, any other by its name.
        """
        described = Exception(f"{type(failure).__name__}: {failure}")
        failures = await self.gather(failure if failure is None or isinstance(failure, UserError) else described)
        for other in [failure, *failures]:
            if other:
                raise other

    def add(self, tensors: Sequence["torch.Tensor"]) -> None:
        """Replace each of these tensors, of one type, by the sum over all processes."""
        if self.size > 1:
            import torch
            import torch.distributed as dist

            flat = torch.cat([tensor.reshape(-1) for tensor in tensors])  # one message: each takes a millisecond
            dist.all_reduce(flat)
            for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def add_gradients(self, weights: "Sequence[torch.nn.Parameter]") -> None:
        if self.size > 1:
            import torch

            for weight in weights:
                if weight.grad is None:  # this process had nothing to learn from
                    weight.grad = torch.zeros_like(weight)
            self.add([weight.grad for weight in weights if weight.grad is not None])


ALONE = Team()


def run_as_team(main: Callable[[Team], Coroutine[Any, Any, None]], size: int) -> None:
    """Run `main` in an event loop in each of `size` processes, or in one where there is a GPU. This process is the first.

    Args:
        main: the whole work. torch must not have computed before: its threads do not survive the fork.

    Raises:
        UserError: another process died, or the processes do not reach each other.
    """
    if size == 1 or _has_gpu():
        asyncio.run(main(ALONE))
        return
    fork = multiprocessing.get_context("fork")  # nothing has been computed yet, and imports take seconds
    with TemporaryDirectory() as folder:
        sentence = Path(folder, "sentence")
        others = [fork.Process(target=_follow, args=(main, Team(rank, size), sentence)) for rank in range(1, size)]
        try:
            for process in others:
                process.start()
            asyncio.run(_meet(main, Team(0, size), sentence))
        except (RuntimeError, _NotMet) as error:  # gloo's, or from before it was ready: a connection was closed
            for process in others:
                process.join(1)
            if sentence.exists():
                raise UserError(sentence.read_text()) from None
            died = [process.exitcode for process in others if process.exitcode]
            if not died:
                raise
            raise UserError(
                f"One of the {size} processes died with exit code {died[0]}; a negative one is a signal, and -9 often means "
                "that memory ran out. The same command goes on from what was saved."
            ) from error
        finally:
            for process in others:
                if process.pid:
                    process.kill()
                    process.join()
            _part()


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


class _NotMet(UserError):
    """The processes do not reach each other."""


def _part() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


async def _meet(main: Callable[[Team], Coroutine[Any, Any, None]], team: Team, sentence: Path) -> None:
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a host's name may not resolve
    waits = timedelta(days=1)  # for a process that does something alone
    try:
        store = f"file://{sentence.with_name('store')}"
        dist.init_process_group("gloo", store, rank=team.rank, world_size=team.size, timeout=waits)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise _NotMet(
            f"The {team.size} processes do not reach each other over the interface lo: {reason}. Bring it up, or set "
            "cores: 1."
        ) from error
    await main(team)


def _follow(main: Callable[[Team], Coroutine[Any, Any, None]], team: Team, sentence: Path) -> None:
    gc.freeze()  # the destructor of an inherited object may wait for a thread, and the fork copies none
    for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # they may reach all, and the first process decides
        signal.signal(kind, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115  the first process says the same
    try:
        asyncio.run(_meet(main, team, sentence))
    except UserError as error:
        sentence.write_text(str(error))
        sys.exit(1)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
