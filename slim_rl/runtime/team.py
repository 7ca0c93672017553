"""Data parallelism: several processes run the same stage, share its episodes and add up its gradients.

For models so small that two threads spend their time waiting for each other. The numbers depend on the number of
processes, but on nothing else, such as which of them is faster.
"""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
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
    """One process's place among those that run a stage. Every process must call `gather`, `lead` and `add` in the same
    order."""

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

    def gather(self, own: T | Exception) -> list[T]:
        """What each process has, by rank.

        Raises:
            Exception: the first that a process gave instead.
        """
        found: list[Any] = [own]
        if self.size > 1:
            import torch.distributed as dist

            found = [None] * self.size
            dist.all_gather_object(found, own)
        for one in found:
            if isinstance(one, Exception):
                raise one
        return found

    def lead(self, own: T) -> T:
        """What the first process has."""
        if self.size == 1:
            return own
        import torch.distributed as dist

        found = [own]
        dist.broadcast_object_list(found)
        return found[0]

    def add(self, tensors: Sequence["torch.Tensor"]) -> None:
        """Replace each of these tensors, of one type, by the sum over all processes."""
        if self.size > 1:
            import torch
            import torch.distributed as dist

            flat = torch.cat([tensor.reshape(-1) for tensor in tensors])  # one message: each takes a millisecond
            dist.all_reduce(flat)
            for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def add_gradients(self, model: "torch.nn.Module") -> None:
        if self.size > 1:
            import torch

            trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
            for parameter in trained:
                if parameter.grad is None:  # this process had nothing to learn from
                    parameter.grad = torch.zeros_like(parameter)
            self.add([parameter.grad for parameter in trained if parameter.grad is not None])


ALONE = Team()


def run_as_team(main: Callable[[Team], None], size: int) -> None:
    """Run `main` in `size` processes, of which this is the first; in this one alone where there is a GPU.

    Args:
        main: the whole work; what has been computed before it can hang in the other processes.

    Raises:
        UserError: another process died.
    """
    if size > 1:
        import torch

        size = 1 if torch.cuda.is_available() else size
    if size == 1:
        main(ALONE)
        return
    fork = multiprocessing.get_context("fork")  # nothing has been computed yet, and imports take seconds
    with TemporaryDirectory() as folder:
        store = Path(folder, "store")
        others = [fork.Process(target=_follow, args=(main, Team(n, size), store), daemon=True) for n in range(1, size)]
        for process in others:
            process.start()
        try:
            _meet(Team(0, size), store)
            main(Team(0, size))
            for process in others:
                process.join()
        except RuntimeError as error:  # gloo's: a connection was closed
            died = [process.exitcode for process in others if process.exitcode]
            if not died:
                raise
            raise UserError(
                f"One of the {size} processes died with exit code {died[0]}; a negative one is a signal, and -9 often means "
                "that memory ran out. The same command goes on from what was saved."
            ) from error
        finally:
            for process in others:
                process.kill()
                process.join()
            _part()


def _meet(team: Team, store: Path) -> None:
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a host's name may not resolve
    waits = timedelta(days=1)  # for a process that does something alone
    dist.init_process_group("gloo", f"file://{store}", rank=team.rank, world_size=team.size, timeout=waits)


def _part() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def _follow(main: Callable[[Team], None], team: Team, store: Path) -> None:
    for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # they may reach all, and the first process decides
        signal.signal(kind, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115  the first process says the same
    _meet(team, store)
    try:
        main(team)
    except UserError:  # the first process has it too, and tells it
        sys.exit(1)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
