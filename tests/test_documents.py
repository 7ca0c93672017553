"""The documents: links lead somewhere, commands and parameters are those that there are, the list of parameters is current.

Programs in the documents are run by the tests of what they show: test_api, test_write_a_game, test_write_a_study,
games/agent/test_agent. `make repro`, `dvc repro` and the flows are run by test_pipeline and flows/test_flows.
"""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from slim_rl.config import checked, composed
from stages import listing
from stages.cli import COMMANDS
from stages.run import settings

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
FENCED = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
NOT_RUN = {
    "prefect": "needs a server; the deployments are checked here, and flows/test_flows runs them",
    "dvc": "DVC's own",
    "pip": "fetches packages",
    "export": "changes nothing by itself",
    **dict.fromkeys(["docker", "git", "apt-get", "sbatch", "ray"], "needs a cluster or the network"),
}
READERS = {"NAME", "PROFILE", "guess", "sums"}
"""Profiles that a reader writes or puts in."""


def commands(text):
    text = text.replace("\\\n", " ")
    lines = [line for language, block in FENCED.findall(text) if not language for line in block.splitlines()]
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", FENCED.sub("", text))]
    for line in (*lines, *spans):
        if re.match(rf"(make|slim-rl|(\S*/)?python[\d.]* -m|{'|'.join(NOT_RUN)}) ", line):
            words = shlex.split(line, comments=True)
            yield words[: words.index("|")] if "|" in words else words


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_commands_of_a_document_exist(document, monkeypatch):
    monkeypatch.chdir(ROOT)
    make, deployments = (Path(name).read_text() for name in ("Makefile", "prefect.yaml"))
    for first, *words in commands(document.read_text()):
        module, flags = None, [word.partition("=")[0] for word in words if word.startswith("--")]
        if first == "make":
            [target, *variables] = words
            assert re.search(rf"^{target}:", make, re.MULTILINE), target
            values = dict(variable.split("=", 1) for variable in variables)
            assert set(values) <= set(re.findall(r"^VARIABLES := (.*)", make, re.MULTILINE)[0].split()), words
            profile = values.get("PROFILE") or None
            if profile not in READERS and "=N" not in values.get("SET", ""):
                checked(composed(profile, dict(settings(values["SET"])) if "SET" in values else None), str(words))
        elif first == "slim-rl" and words[0] != "COMMAND":
            module = COMMANDS[words[0]][0]
        elif "python" in first and words[1].partition(".")[0] in ("stages", "flows", "benchmarks", "tests"):
            module = words[1]
            if module == "stages.estimate" and words[2] not in READERS:
                composed(words[2])
        elif words[:2] == ["deployment", "run"]:
            flow, _, name = words[2].partition("/")
            assert f"name: {name}" in deployments and flow in deployments, words
        if module and not module.endswith("."):
            source = Path(*module.split(".")).with_suffix(".py").read_text()
            assert all(f'"{flag}"' in source for flag in flags if flag != "--help"), words


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_parameters_of_a_document_are_parameters(document, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("OPENREWARD_API_KEY", "key")
    for language, block in FENCED.findall(document.read_text()):
        if language == "yaml" and not re.search(r"my_|guess|sums|turns:", block):  # a reader's own modules
            checked({"games": {"matching": {}}} | yaml.safe_load(block), str(document))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_links_of_a_document_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        path, _, anchor = target.partition("#")
        if not target.startswith("http"):
            found = document if not path else document.parent / path
            assert found.exists(), target
            if anchor:
                heads = re.findall(r"^#+ (.*)", found.read_text(), re.MULTILINE)
                assert anchor in {re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads}, target


def test_the_list_of_parameters_is_current(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["listing", "params", "--markdown"])
    listing.main()
    assert capsys.readouterr().out == (ROOT / "docs/parameters.md").read_text(), (
        "slim-rl params --markdown > docs/parameters.md"
    )
