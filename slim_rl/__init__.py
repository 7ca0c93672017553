"""Does a language model learn to ask questions when only asking pays? As a library: see docs/python.md."""

from typing import Any

__all__ = ["Batches", "Episode", "Policy", "Sample", "Task", "UserError", "episodes", "play", "samples", "train"]


def __getattr__(name: str) -> Any:  # torch is loaded by those who use it
    if name not in __all__:
        raise AttributeError(f"module slim_rl has no attribute {name}; it has {', '.join(__all__)}")
    from slim_rl import api

    return getattr(api, name)
