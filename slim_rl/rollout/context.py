"""Whether a model's context and turns are long enough for a game."""

from collections.abc import Sequence

from slim_rl.core.errors import UserError
from slim_rl.core.game import Task
from slim_rl.core.message import Tool, heard
from slim_rl.games import NamedGame, policy_seats
from slim_rl.players.renderer import Renderer
from slim_rl.rollout.tasks import TaskFile


async def check_context(
    game: NamedGame,
    tasks: Sequence[Task],
    renderer: Renderer,
    max_context_tokens: int,
    max_turn_tokens: int,
    limit: int | None = None,
) -> None:
    """Check that the task with the longest prompt fits a model.

    Where the taskset demonstrates, there must be room for the prompt, one turn with its answer, and a last
    turn; otherwise for the prompt with the seat's tools and one turn of `max_turn_tokens`.

    Args:
        limit: `model.context_tokens`; None where it does not count. The sentence names it where it is what does not suffice.

    Raises:
        UserError: it does not fit, or a demonstrated turn is longer than `max_turn_tokens`.
    """
    longest = tasks.longest if isinstance(tasks, TaskFile) else max(tasks, key=lambda task: len(task.prompt))
    for seat in policy_seats(game):
        shown = game.taskset.demonstrate(longest, seat)
        if shown is None:
            prompt = len(renderer.opening(heard(longest.prompt), await _tools(game, longest, seat)))
            _check(longest, prompt, 0, max_turn_tokens, max_context_tokens, limit)
            continue
        prompt = len(renderer.opening(shown.read(0), shown.tools))
        turn = 0
        if shown.turns:
            turn = len(renderer.turn(shown.turns[0]) + renderer.continuation(shown.read(1)))
        text = shown.closings[min(1, len(shown.turns))] or shown.turns[-1]
        last = len(renderer.turn(text))
        _check(longest, prompt, turn, last, max_context_tokens, limit)
        if last > max_turn_tokens:
            raise UserError(
                f"model.turn_tokens is {max_turn_tokens}, but {text!r} has {last} tokens in this model's "
                "tokenizer. Allow at least as many."
            )


async def _tools(game: NamedGame, task: Task, seat: str) -> Sequence[Tool]:
    loaded = game.load(task)
    try:
        return loaded.tools(seat)
    finally:
        await loaded.close()


def _check(task: Task, prompt: int, turn: int, last: int, max_context_tokens: int, limit: int | None) -> None:
    if prompt + turn + last > max_context_tokens:
        room = f"its context of {max_context_tokens} tokens. Use a model with a longer context, or a smaller game"
        if limit == max_context_tokens:
            room = f"model.context_tokens, {limit}. Raise it, or use a smaller game"
        raise UserError(
            f"The game {task.game_id} is too long for the model: a prompt of {prompt} tokens, a turn with "
            f"its answer ({turn}) and a last turn ({last}) do not fit {room}."
        )
