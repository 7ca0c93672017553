"""SLIME's own `parse_args`, with Megatron's and SGLang's real parsers and SLIME's and Megatron's checks of the values.

A process of its own, because the tests have stubs of SGLang: `python tests/slime/parsing.py < command_lines.json` prints
what each parser left over, or why SLIME would not start, by the name of the command line.
"""

import argparse
import contextlib
import io
import json
import sys
import traceback
from importlib.machinery import ModuleSpec
from unittest.mock import MagicMock

import torch
from transformers import AutoConfig

UNUSED = ("IPython", "torchvision", "triton")
"""Imported beside the parsers, for GPUs and for people; stubbed where they are not installed."""


class Stubs:
    """Finds `UNUSED` and all modules in them."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        return ModuleSpec(name, Stubs, is_package=True) if name.split(".")[0] in UNUSED else None

    @staticmethod
    def create_module(spec):
        module = MagicMock(__path__=[], __name__=spec.name, __version__="3.6.0")
        module.runtime.driver.active.get_current_target.return_value.backend = "cpu"  # SGLang asks Triton for it
        return module

    @staticmethod
    def exec_module(module):
        pass


def left_over(words, parse_args):
    """What none of SLIME's parsers takes; each of them ignores what it does not know."""
    parsers, parse = [], argparse.ArgumentParser.parse_known_args

    def seen(parser, *given):
        parsers.append(parser)
        return parse(parser, *given)

    sys.argv = ["train.py", *words]
    argparse.ArgumentParser.parse_known_args = seen
    try:
        parse_args()
    finally:
        argparse.ArgumentParser.parse_known_args = parse
    for parser in parsers:
        _, words = parse(parser, words)
    return words


def refuse(parser, message):
    raise ValueError(message)


def main():
    sys.meta_path.append(Stubs)
    argparse.ArgumentParser.error = refuse
    AutoConfig.register = lambda *given, **more: None  # SGLang adds models that our newer transformers has
    torch.cuda.get_device_properties = lambda *given: argparse.Namespace(major=9, minor=0)  # an H100's
    found = {}
    with contextlib.redirect_stdout(io.StringIO()):  # Megatron shows all arguments
        from slime.utils.arguments import parse_args

        for name, words in json.load(sys.stdin).items():
            try:
                found[name] = left_over(words, parse_args)
            except Exception:  # whatever a parser or a check raises is the finding that the test asserts on
                found[name] = traceback.format_exc()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
