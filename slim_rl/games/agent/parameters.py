"""Parameters of an agent that is a program of the user's own."""

from pathlib import Path

from pydantic import Field

from slim_rl.core.parameters import GameParameters


class Parameters(GameParameters):
    adds_seats = True

    tasks: Path | None = None
    """JSON lines. A line is an object, which the agent gets as it is; its `id` names the task."""
    eval_tasks: Path | None = None
    """The tasks held out. null: a fifth of `tasks`, chosen by their names."""
    command: tuple[str, ...] = ()
    """`agent` alone: the program with its arguments. It finds OPENAI_BASE_URL and OPENAI_API_KEY in its environment and
    the task on its standard input, and its last line of output is JSON: the reward, or an object with `reward`."""
    seconds: float = Field(600.0, gt=0)
    """Time limit of an episode, the model's turns included. An agent that exceeds it is ended; the episode has failed."""
    max_turns: int = Field(20, ge=1)
    """Completions that an agent may ask for; the next one is refused. An agent that ends for this reason earns 0."""

    def files(self) -> list[Path]:
        program = [Path(part) for part in self.command if Path(part).suffix and Path(part).is_file()]
        return [*super().files(), *program]
