"""`make test-slime SLIME_DIR=...` runs all of these tests; without SLIME_DIR only those of `launch` are collected."""

import contextlib
import json
import sys
import types
from functools import partial
from pathlib import Path

import pytest
import yaml

from tests.slime.support import PARAMETERS, QWEN, SLIME_DIR, router, server, slime_args

collect_ignore = []
if SLIME_DIR is None:
    collect_ignore = [path.name for path in Path(__file__).parent.glob("test_*.py") if path.name != "test_launch.py"]
else:
    sys.path.insert(0, SLIME_DIR)
    # What SLIME imports from SGLang but does not use on its rollout side; it needs a GPU.
    for name in ("sglang", *(f"sglang.srt{part}" for part in ("", ".constants", ".server_args", ".utils"))):
        sys.modules[name] = types.ModuleType(name)
    for memory in ("CUDA_GRAPH", "KV_CACHE", "WEIGHTS"):
        setattr(sys.modules["sglang.srt.constants"], f"GPU_MEMORY_TYPE_{memory}", memory.lower())
    sys.modules["sglang.srt.server_args"].ServerArgs = type("ServerArgs", (), {})
    sys.modules["sglang.srt.utils"].kill_process_tree = None


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A checkpoint that plays the matching game, from the stage `base_model`."""
    from stages import base_model

    folder = tmp_path_factory.mktemp("workspace")
    (folder / "params.yaml").write_text(yaml.safe_dump(PARAMETERS))
    with contextlib.chdir(folder):
        base_model.main()
    return folder / "models/base"


@pytest.fixture(scope="session")
def servers(trained):
    with server(trained) as (one, _), server(trained) as (two, _), router(one, two) as port:
        yield (one, two), port


@pytest.fixture(scope="session")
def make_args(trained):
    return partial(slime_args, trained)


@pytest.fixture
def base(tmp_path):
    """A checkpoint folder as small as `launch` needs it, for a model that SLIME has no script of."""
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    return tmp_path
