"""Megatron's description of a model."""

import json
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from slim_rl.core.errors import UserError


def model_arguments(base: Path, name: str, slime: str | None) -> list[str]:
    """The arguments from SLIME's `scripts/models` if it has the checkpoint's name, otherwise from its `config.json`.

    Args:
        base: the checkpoint's folder.
        name: as in `model.base`.
        slime: folder of SLIME's source.

    Raises:
        UserError: neither describes the model.
    """
    scripts = sorted((Path(slime).expanduser() / "scripts/models").glob("*.sh")) if slime else []
    for script in scripts:
        if script.stem.lower() == Path(name).name.lower():
            return script_arguments(script)
    try:
        config = json.loads((base / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{base / 'config.json'} cannot be read: {error}.") from error
    return config_arguments(config, base)


def script_arguments(script: Path) -> list[str]:
    """What a script of SLIME's `scripts/models` says."""
    show = f'source {shlex.quote(str(script))} && printf "%s\\n" "${{MODEL_ARGS[@]}}"'
    return subprocess.run(["bash", "-c", show], capture_output=True, text=True, check=True).stdout.splitlines()


def config_arguments(model: dict, base: Path) -> list[str]:
    """The same from the `config.json` of a dense Qwen2, Qwen3 or Llama. Raises UserError for other models."""
    family = model.get("model_type")
    rope = {**model, **(model.get("rope_parameters") or model.get("rope_scaling") or {})}
    scaling = rope.get("rope_type") or "default"
    known = family in ("qwen2", "qwen3", "llama") and scaling in ("default", "llama3")
    if not known or model.get("attention_bias") or model.get("mlp_bias"):
        raise UserError(
            f"{base} is a {family!r} model, whose config.json does not tell Megatron enough. Set model.base to the "
            "name of a checkpoint that SLIME's scripts/models has, and slime.directory."
        )
    heads = model["num_attention_heads"]
    flags: dict[str, object] = {
        "num-layers": model["num_hidden_layers"],
        "hidden-size": model["hidden_size"],
        "ffn-hidden-size": model["intermediate_size"],
        "num-attention-heads": heads,
        "num-query-groups": model.get("num_key_value_heads") or heads,
        "kv-channels": model.get("head_dim") or model["hidden_size"] // heads,
        "rotary-base": int(rope["rope_theta"]),
        "normalization": "RMSNorm",
        "norm-epsilon": model["rms_norm_eps"],
        "vocab-size": model["vocab_size"],
        "swiglu": True,
        "group-query-attention": True,
        "use-rotary-position-embeddings": True,
        "disable-bias-linear": True,
        "add-qkv-bias": family == "qwen2",
        "qk-layernorm": family == "qwen3",
        "untie-embeddings-and-output-weights": not model.get("tie_word_embeddings", False),
        "use-rope-scaling": scaling == "llama3",
        "rope-scaling-factor": rope["factor"] if scaling == "llama3" else None,
    }
    return list(words(flags))


def words(flags: Mapping[str, object]) -> Iterator[str]:
    """Flags as a command line has them: without those that are None or False."""
    for name, value in flags.items():
        if value is not None and value is not False:
            values = value if isinstance(value, tuple) else () if value is True else (value,)
            yield from (f"--{name}", *map(str, values))
