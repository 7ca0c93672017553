"""Data parallelism: several processes run the same stage, share its episodes and add up its gradients.

For models so small that two threads spend their time waiting for each other. The numbers depend on the number of
processes, but on nothing else, such as which of them is faster.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
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

    def gather(self, own: T) -> list[T]:
        """What each process has, by rank."""
        if self.size == 1:
            return [own]
        import torch.distributed as dist

        waiting = dist.barrier(async_op=True)
        while not waiting.is_completed():  # in Python, where Ctrl-C is heard
            time.sleep(0.005)
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, own)
        return found

    def agree(self, failure: Exception | None) -> None:
        """Go on if no process failed.

        Raises:
            Exception: this process's own failure, else that of another; of one that is no UserError its name and words.
        """
        told = failure if failure is None or isinstance(failure, UserError) else Exception(_words(failure))
        failures = self.gather(told)
        if failure:
            raise failure
        for other in filter(None, failures):
            raise other

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


def team_size(processes: int) -> int:
    """One where there is a GPU."""
    if processes == 1:
        return 1
    import torch

    return 1 if torch.cuda.is_available() else processes


def run_as_team(main: Callable[[Team], None], processes: int) -> None:
    """Run `main` in as many processes as `team_size` says, of which this is the first.

    Args:
        main: the whole work. torch must not have computed before: its threads do not survive the fork.

    Raises:
        UserError: another process died, or the processes do not reach each other.
    """
    size = team_size(processes)
    if size == 1:
        main(ALONE)
        return
    fork = multiprocessing.get_context("fork")  # nothing has been computed yet, and imports take seconds
    with TemporaryDirectory() as name:
        folder = Path(name)
        others = [fork.Process(target=_follow, args=(main, Team(rank, size), folder)) for rank in range(1, size)]
        try:
            for process in others:
                process.start()
            _meet(Team(0, size), folder)
            main(Team(0, size))
        except (RuntimeError, _NotMet) as error:  # gloo's, or from before it was ready: a connection was closed
            for process in others:
                process.join(1)
            if (folder / _SENTENCE).exists():
                raise UserError((folder / _SENTENCE).read_text()) from None
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


_SENTENCE = "sentence"
"""In the team's folder: what a process that is not the first has to tell the user."""


class _NotMet(UserError):
    """The processes do not reach each other."""


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _meet(team: Team, folder: Path) -> None:
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a host's name may not resolve
    waits = timedelta(days=1)  # for a process that does something alone
    store = f"file://{folder / 'store'}"
    try:
        dist.init_process_group("gloo", store, rank=team.rank, world_size=team.size, timeout=waits)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise _NotMet(
            f"The {team.size} processes do not reach each other over the interface lo: {reason}. Bring it up, or set "
            "processes: 1."
        ) from error


def _part() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def _follow(main: Callable[[Team], None], team: Team, folder: Path) -> None:
    for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # they may reach all, and the first process decides
        signal.signal(kind, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115  the first process says the same
    try:
        _meet(team, folder)
        main(team)
    except UserError as error:
        (folder / _SENTENCE).write_text(str(error))
        sys.exit(1)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
