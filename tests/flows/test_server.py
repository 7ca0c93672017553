"""A flow where PREFECT_API_URL names a server."""

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.workspace import check_server
from slim_rl.core.errors import UserError


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/api", "http://nowhere.invalid/api"])
def test_a_server_that_does_not_answer_is_a_sentence(url):
    with temporary_settings({PREFECT_API_URL: url}), pytest.raises(UserError) as error:
        check_server()
    assert f"PREFECT_API_URL={url}" in str(error.value) and "\n" not in str(error.value)


def test_without_a_server_there_is_nothing_to_check():
    with temporary_settings({PREFECT_API_URL: None}):
        check_server()
