"""Which run goes on in which folder."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slim_rl.core.parameters import flat
from slim_rl.runtime.files import write_text

INPUTS = "inputs.json"
"""In the folder of a run, the parameters that identify it, by dotted name."""
_MAY_CHANGE = ("steps", "microbatch_tokens", "gradient_checkpointing", "trained_layers", "checkpoint_every",
               "checkpoint_minutes", "snapshot_every", "pool_size", "wandb_project")  # fmt: skip
"""Of `train`: a run may become longer; the others are for the local backend alone."""


def identity(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What identifies a run of SLIME, of the values of its sections: what its episodes and updates depend on."""
    return {**inputs, "train": {name: value for name, value in inputs["train"].items() if name not in _MAY_CHANGE}}


def announce(folder: Path, inputs: Mapping[str, Any]) -> str:
    """A sentence that says whether a run goes on in `folder` or a new one begins, and which parameters make it new."""
    noted, ours = folder / INPUTS, dict(flat(inputs))
    if noted.exists():
        return f"The run in {folder} goes on."
    others = sorted(folder.parent.glob(f"*/{INPUTS}"), key=lambda path: path.stat().st_mtime)
    write_text(noted, json.dumps(ours, indent=2, sort_keys=True))
    if not others:
        return f"A run begins in {folder}."
    last = json.loads(others[-1].read_text(encoding="utf-8"))
    changed = [
        f"{name} is {json.dumps(ours.get(name))} and was {json.dumps(last.get(name))}"
        for name in sorted(ours.keys() | last.keys())
        if ours.get(name) != last.get(name)
    ]
    why = "; ".join(changed) or "the tasks or the base model are others"
    return f"A new run begins in {folder}, because {why}. The run before it stays in {others[-1].parent}."
