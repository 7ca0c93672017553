"""Work folders belong to what the work depends on, and stay; of Python files only the code counts."""

import tracemalloc

import pytest

from slim_rl.runtime.code import dependencies, fingerprint, work_folder

CODE = '"""Doc."""\nNAME = "one"\ndef one():\n    return 1\n'


def test_unfinished_work_belongs_to_its_inputs_and_none_is_ever_deleted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "input").write_text("one")
    first = work_folder("train", {"a": 1}, tmp_path / "input")
    (first / "ledger.jsonl").write_text("paid")
    assert work_folder("train", {"a": 1}, tmp_path / "input") == first
    (tmp_path / "input").write_text("two")
    second, third = (work_folder("train", {"a": n}, tmp_path / "input") for n in (1, 2))
    assert len({first, second, third}) == 3
    assert (first / "ledger.jsonl").read_text() == "paid"


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("def ", "# a comment\n\n\ndef ", True),
        ('"""', '"""Another beginning. ', True),
        ("return", "return 1 + ", False),
        ('"one"', '"two"', False),
    ],
)
def test_code_changes_a_fingerprint_and_words_about_it_do_not(tmp_path, old, new, same):
    file = tmp_path / "theory.py"
    file.write_text(CODE)
    before = fingerprint(tmp_path)
    file.write_text(CODE.replace(old, new, 1))
    assert (fingerprint(tmp_path) == before) == same


@pytest.mark.parametrize(
    ("library", "folder"), [("a_library", "site-packages/data"), ("another", "target/another-1.0.dist-info")]
)
def test_a_package_of_another_environment_counts_as_a_whole_and_a_module_of_ones_own_by_its_imports(
    tmp_path, monkeypatch, library, folder
):
    """As with `pip install --user` or `--target`, or an environment on top of another: else each run would read all of
    torch."""
    (tmp_path / folder).mkdir(parents=True)
    installed = (tmp_path / folder).parent
    (installed / f"{library}.py").write_text(f"import part_of_{library}\n")
    (installed / f"part_of_{library}.py").write_text("X = 1\n")
    (tmp_path / f"game_with_{library}.py").write_text(f"import {library}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(installed)
    lines = [line.split()[:2] for line in dependencies([f"game_with_{library}"])]
    assert lines == [["module", f"game_with_{library}"], ["package", library]]


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
