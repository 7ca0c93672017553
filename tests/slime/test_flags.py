"""What `launch` gives is what SLIME, Megatron and SGLang's router take."""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import yaml
from safetensors.torch import save_file
from sglang_router.launch_router import RouterArgs
from slime.rollout.sglang_rollout import generate_rollout
from slime.utils.arguments import get_slime_extra_args_provider
from slime.utils.http_utils import init_http_client
from transformers import AutoConfig, AutoTokenizer

from slim_rl.config import Config, composed
from slim_rl.slime.arguments import arguments
from slim_rl.slime.command import environment
from slim_rl.slime.folder import prepare
from slim_rl.slime.model_arguments import config_arguments, script_arguments
from slim_rl.slime.parameters import RunParameters
from stages import base_model
from tests.checkpoints import qwen_checkpoint
from tests.slime.support import PARAMETERS, ROOT, SLIME_DIR, SGLangShaped, answering, args_of, converted, data_source

FILES = [path for path in sorted((ROOT / "conf").glob("*gpu*.yaml")) if "backend: local" not in path.read_text()]
PROFILES = [None, *(path.stem for path in FILES)]
MEGATRON = (
    "megatron",
    *(f"megatron.training{part}" for part in ("", ".arguments", ".tokenizer", ".tokenizer.tokenizer")),
)
DENSE = ["qwen2.5-0.5B", "qwen2.5-7B", "qwen3-0.6B", "qwen3-4B", "qwen3-8B", "llama3.1-8B-Instruct"]
KEYED = ("qwen3-4b-8gpu-openreward", "dialop-gpt4.1-8gpu")
"""Profiles with a hosted environment or partner, which asks for a key."""
DOCUMENTED = ["--partial-rollout", "--use-rollout-routing-replay", "--rollout-top-p", "0.9"]
"""In docs/cluster.md, for `slime.arguments`."""


def parameters_of(profile, monkeypatch, **slime):
    """The parameters of params.yaml with a profile laid over it."""
    monkeypatch.chdir(ROOT)
    values = composed(profile)
    values["slime"] = {**values.get("slime", {}), "directory": SLIME_DIR, **slime}
    values["train"]["wandb_project"] = "p"
    return RunParameters.of(Config.model_validate(values))


def parsers():
    parser = get_slime_extra_args_provider()(argparse.ArgumentParser(allow_abbrev=False))
    RouterArgs.add_cli_args(parser, use_router_prefix=True, exclude_host_port=True)
    return parser


def left_over(flags):
    """What neither SLIME's own parser nor the router's takes; SLIME reads it by Megatron's and SGLang's."""
    flags[flags.index("--router-policy") + 1] = "manual"  # the name of the policy in the router on PyPI
    return [flag for flag in parsers().parse_known_args(flags)[1] if flag.startswith("--")]


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """A function that runs the stage `base_model` of a profile on its checkpoint, made here, and gives its folder."""

    def begin(profile):
        parameters = parameters_of(profile, monkeypatch)
        folder = tmp_path / Path(parameters.model.base).name
        folder.mkdir()
        qwen_checkpoint(folder)
        save_file({}, folder / "model.safetensors")  # the stage reads no weight of a model that SLIME trains
        values = composed(profile)
        values["model"]["base"], values["slime"]["directory"] = str(folder), SLIME_DIR
        monkeypatch.chdir(tmp_path)
        Path("data").symlink_to(ROOT / "data")
        Path("params.yaml").write_text(yaml.safe_dump(values))
        base_model.main()
        assert AutoTokenizer.from_pretrained(base_model.OUTPUT).chat_template
        given = RunParameters.of(Config.model_validate(values))
        return given, base_model.OUTPUT.resolve()

    return begin


@pytest.mark.parametrize("profile", [profile for profile in PROFILES[1:] if profile not in KEYED])
def test_a_profile_starts(profile, begun, tmp_path):
    """Its checkpoint's special tokens and template, SLIME's check of the model's shape, and SLIME's rollout."""
    parameters, base = begun(profile)
    flags = pairs(arguments(parameters, base, tmp_path))
    shape = {name[2:].replace("-", "_"): value and yaml.safe_load(value) for name, value in flags.items()}
    shape["untie_embeddings_and_output_weights"] = "--untie-embeddings-and-output-weights" in flags
    shape["norm_epsilon"] = float(shape["norm_epsilon"])
    hf_check()(SimpleNamespace(**shape), AutoConfig.from_pretrained(base))
    gpus = parameters.slime.nodes * parameters.slime.gpus_per_node
    assert gpus % (int(flags["--tensor-model-parallel-size"]) * int(flags.get("--context-parallel-size") or 1)) == 0

    train = {"games_per_step": 2, "samples_per_game": 2, "filters": ("no_failed_episode",)}
    parameters = parameters.model_copy(update={"train": parameters.train.model_copy(update=train)})
    tokenizer = AutoTokenizer.from_pretrained(base)
    engine = SGLangShaped(tokenizer, 0)
    engine.engine.moods = 1000
    args = args_of(parameters, base, tmp_path / "run", (), answering(engine), count=4)
    init_http_client(args)
    output = generate_rollout(args, 0, data_source(args))
    samples = [sample for group in output.samples for sample in group]
    assert len(samples) == 4
    samples = [one for sample in samples for one in (sample if isinstance(sample, list) else [sample])]  # of each seat
    assert all(sum(sample.loss_mask) for sample in samples)
    skips_thought = "<think>\n\n</think>" in tokenizer.decode(samples[0].tokens)
    knows_thoughts = "Qwen2.5" not in parameters.model.base
    assert skips_thought == (knows_thoughts and not parameters.model.thinking)
    assert ("created by Alibaba" in tokenizer.chat_template) != knows_thoughts
    args.logged_rollout_id = 0  # SLIME logs a rollout before it converts it
    assert len(converted(args, samples)["tokens"]) == len(samples)


def hf_check():
    """SLIME's own, with Megatron stubbed as in SLIME's tests."""
    modules = {name: ModuleType(name) for name in MEGATRON}
    modules["megatron.training.arguments"].parse_args = modules["megatron.training.arguments"].validate_args = None
    modules["megatron.training.tokenizer.tokenizer"]._vocab_size_with_padding = None
    path = Path(SLIME_DIR, "slime/backends/megatron_utils/arguments.py")
    spec = importlib.util.spec_from_file_location("slimes_megatron_arguments", path)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        for name, stub in modules.items():
            patch.setitem(sys.modules, name, stub)
        spec.loader.exec_module(module)
    return module._hf_validate_args


@pytest.mark.parametrize("profile", PROFILES)
def test_every_flag_is_known(profile, base, monkeypatch):
    parameters = parameters_of(profile, monkeypatch, evaluate_every=5)
    flags = [
        *arguments(parameters, base, base),
        "--partial-rollout",
        "--rollout-external-engine-addrs",
        "a:1",
    ]
    # What is left over must be an argument that SLIME's own scripts or code use.
    sources = [p for p in Path(SLIME_DIR).rglob("*") if p.suffix in (".py", ".sh")]
    text = "\n".join(path.read_text(errors="ignore") for path in sources)
    assert [
        flag
        for flag in left_over(flags)
        if not any(form in text for form in (f"{flag} ", f"{flag}\n", f"args.{flag[2:].replace('-', '_')}"))
    ] == []


MODES = {"sync": {}, "async": {"rollout_gpus": 8}, "fully_async": {"rollout_gpus": 8}}


def test_slime_starts_with_megatrons_and_sglangs_own_parsers(tmp_path, monkeypatch):
    """With their sources (MEGATRON_DIR, SGLANG_DIR): every flag is taken by a parser, and every check of SLIME's and
    Megatron's passes, for each profile and mode. Each parser ignores what it does not know."""
    sources = [os.environ.get(f"{name}_DIR") for name in ("MEGATRON", "SGLANG")]
    if not all(sources):
        pytest.skip("MEGATRON_DIR and SGLANG_DIR do not name the sources of Megatron-LM and SGLang")
    lines = {}
    for profile, mode in product(PROFILES[1:], MODES):
        parameters = parameters_of(profile, monkeypatch, mode=mode, **MODES[mode])
        base = tmp_path / Path(parameters.model.base).name
        base.mkdir(exist_ok=True)
        qwen_checkpoint(base)
        prepare(parameters, {}, {}, tmp_path)
        given = [*parameters.slime.arguments, "--router-policy", "manual"]  # as docs/cluster.md says of PyPI's router
        slime = parameters.slime.model_copy(update={"arguments": given})
        parameters = parameters.model_copy(update={"slime": slime})
        lines[f"{profile} {mode}"] = arguments(parameters, base, tmp_path)
    whole = lines["qwen3-4b-8gpu sync"]
    lines["what docs/cluster.md names"] = [*whole, *DOCUMENTED]
    lines["a wrong flag"] = [*whole, "--nobody-knows", "this"]
    lines["a wrong value"] = [*whole, "--lr", "much"]
    lines["a wrong layout"] = [*whole, "--tensor-model-parallel-size", "3"]

    path = [SLIME_DIR, *sources, *(f"{source}/python" for source in sources)]
    env = {
        **os.environ,
        **environment(parameters.slime),
        "PYTHONPATH": os.pathsep.join(path),
        "TORCHDYNAMO_DISABLE": "1",
    }
    script = Path(__file__).with_name("parsing.py")
    run = subprocess.run([sys.executable, script], env=env, input=json.dumps(lines), stdout=-1, text=True, check=True)
    found = json.loads(run.stdout)
    assert found.pop("a wrong flag") == ["--nobody-knows", "this"]
    assert "--lr: invalid float value" in found.pop("a wrong value")
    assert "world size (8) is not divisible by" in found.pop("a wrong layout")
    assert {name: left for name, left in found.items() if left} == {}


@pytest.mark.parametrize("name", DENSE)
def test_model_arguments_from_a_config_are_those_of_slimes_script(name):
    words = script_arguments(Path(SLIME_DIR, "scripts/models", f"{name}.sh"))
    theirs = pairs(" ".join(words).split())
    model = {
        "model_type": next(
            (kind for flag, kind in (("--qk-layernorm", "qwen3"), ("--add-qkv-bias", "qwen2")) if flag in theirs),
            "llama",
        ),
        "num_hidden_layers": int(theirs["--num-layers"]),
        "hidden_size": int(theirs["--hidden-size"]),
        "intermediate_size": int(theirs["--ffn-hidden-size"]),
        "num_attention_heads": int(theirs["--num-attention-heads"]),
        "num_key_value_heads": int(theirs["--num-query-groups"]),
        "rope_theta": float(theirs["--rotary-base"]),
        "rms_norm_eps": float(theirs["--norm-epsilon"]),
        "vocab_size": int(theirs["--vocab-size"]),
        "tie_word_embeddings": "--untie-embeddings-and-output-weights" not in theirs,
        **({"head_dim": int(theirs["--kv-channels"])} if "--kv-channels" in theirs else {}),
    }
    if "--use-rope-scaling" in theirs:
        # The script names another factor, that of multi-head latent attention; Megatron's default for this one is 8, too.
        model["rope_scaling"] = {"rope_type": "llama3", "factor": float(theirs.pop("--rotary-scaling-factor"))}
    ours = pairs(config_arguments(model, Path(name)))
    # Scripts may leave some to defaults, and SLIME sets the first one itself.
    derived = {"--max-position-embeddings", "--kv-channels", "--use-rotary-position-embeddings"}
    for flag in ours.keys() | theirs.keys() - {"--norm-epsilon"}:
        if flag in theirs and flag in ours and ours[flag] is not None and theirs[flag] is not None:
            same = theirs[flag].strip('"')
            assert ours[flag] == same or float(ours[flag]) == float(same), flag
        elif flag not in derived:
            assert flag in ours, f"{flag} of SLIME's script is missing"


def pairs(words):
    found, last = {}, None
    for word in words:
        if word.startswith("--"):
            found[last := word] = None
        else:
            found[last] = word
    return found


HOOKS = (
    "custom-generate-function-path",
    "dynamic-sampling-filter-path",
    "custom-rollout-log-function-path",
    "custom-eval-rollout-log-function-path",
    "custom-reward-post-process-path",
)


def test_our_hooks_keep_slimes_contracts(base, tmp_path):
    """Its contract tests, `tests/plugin_contracts`."""
    flags = arguments(RunParameters.of(Config.model_validate(PARAMETERS)), base, tmp_path)
    hooks = {
        f"SLIME_CONTRACT_{option.upper().replace('-', '_')}": flags[flags.index(f"--{option}") + 1] for option in HOOKS
    }
    env = {**os.environ, **hooks, "PYTHONPATH": f"{SLIME_DIR}:{ROOT}"}
    command = [sys.executable, "-m", "pytest", "-rA", "tests/plugin_contracts"]
    run = subprocess.run(command, cwd=SLIME_DIR, env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-5000:]
