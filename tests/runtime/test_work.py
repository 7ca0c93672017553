"""Work folders belong to what the work depends on, and stay."""

import shutil
import tracemalloc
from pathlib import Path

import pytest

from slim_rl.runtime import work
from slim_rl.runtime.work import fingerprint, work_folder

GAMES = "games/kuhn/theory.py"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A copy of the package, whose code the folders belong to."""
    source = Path(work.__file__).parents[1]
    shutil.copytree(source / "games/kuhn", tmp_path / "package/games/kuhn")
    monkeypatch.setattr(work, "_PACKAGE", tmp_path / "package")
    return tmp_path / "package"


def test_unfinished_work_belongs_to_its_inputs_and_none_is_ever_deleted(tmp_path, package):
    (tmp_path / "input").write_text("one")
    first = work_folder(tmp_path / "work", {"a": 1}, tmp_path / "input")
    (first / "ledger.jsonl").write_text("paid")
    assert work_folder(tmp_path / "work", {"a": 1}, tmp_path / "input") == first
    (tmp_path / "input").write_text("two")
    second = work_folder(tmp_path / "work", {"a": 1}, tmp_path / "input")
    third = work_folder(tmp_path / "work", {"a": 2}, tmp_path / "input")
    assert len({first, second, third}) == 3
    assert (first / "ledger.jsonl").read_text() == "paid"


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("def ", "# a comment\n\n\ndef ", True),
        ('"""', '"""Another beginning. ', True),
        ("return", "return 1 + ", False),
    ],
)
def test_code_changes_the_folder_and_words_about_it_do_not(tmp_path, package, old, new, same):
    file = package / "games/kuhn/theory.py"
    before = work_folder(tmp_path / "work", {})
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    assert (work_folder(tmp_path / "work", {}) == before) == same


def test_a_string_that_is_used_is_code(tmp_path):
    file = tmp_path / "module.py"
    prints = []
    for text in ('"""Doc."""\nX = "one"\n', '"""Doc."""\nX = "two"\n', '"""Other."""\nX = "two"\n'):
        file.write_text(text)
        prints.append(fingerprint(file))
    assert prints[0] != prints[1] == prints[2]


def test_a_file_is_hashed_in_pieces(tmp_path):
    """Weights can be larger than the memory."""
    with (tmp_path / "weights").open("wb") as file:
        file.truncate(64 << 20)
    tracemalloc.start()
    fingerprint(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_a_file_that_is_no_python_of_ours_can_be_hashed(tmp_path):
    (tmp_path / "template.py").write_text("def {{ name }}(")
    first = fingerprint(tmp_path)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/index").write_text("changes with each look at the folder")
    assert fingerprint(tmp_path) == first
    (tmp_path / "template.py").write_text("def {{ title }}(")
    assert fingerprint(tmp_path) != first
