"""Work folders belong to what the work depends on, and stay."""

import shutil
from pathlib import Path

import pytest

from slim_rl.runtime import work
from slim_rl.runtime.work import fingerprint, source_files, work_folder
from tests.babbler import Babbler

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


def test_the_file_of_the_users_own_code():
    assert source_files([Babbler, len]) == [Path(__file__).parents[1] / "babbler.py"]
