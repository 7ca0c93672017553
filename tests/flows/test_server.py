"""A flow where PREFECT_API_URL names a server; and a server of our own."""

import os

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.workspace import check_server
from slim_rl.core.errors import UserError
from tests.flows.running import Prefect
from tests.workspaces import ROOT


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/api", "http://nowhere.invalid/api"])
def test_a_server_that_does_not_answer_is_a_sentence(url):
    with temporary_settings({PREFECT_API_URL: url}), pytest.raises(UserError) as error:
        check_server()
    assert f"PREFECT_API_URL={url}" in str(error.value) and "\n" not in str(error.value)


def test_without_a_server_there_is_nothing_to_check():
    with temporary_settings({PREFECT_API_URL: None}):
        check_server()


@pytest.mark.slow
def test_server_and_worker_start_where_the_environment_is_not_activated(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.flows.running.environment", lambda: {**os.environ, "PATH": os.defpath})
    (tmp_path / "files").mkdir()
    for name in ("flows", "stages", "slim_rl", "prefect.yaml"):
        (tmp_path / "files" / name).symlink_to(ROOT / name)
    prefect = Prefect(tmp_path / "files", tmp_path)
    try:
        assert prefect.says[0].startswith("Prefect: http://") and prefect.get("deployments/name/pipeline/laptop")
    finally:
        prefect.stop()
