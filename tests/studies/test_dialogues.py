"""Dialogues with tool calls, in a real browser."""

import re

import pytest
from playwright.sync_api import expect

from tests.studies.conftest import serious_violations
from tests.studies.runs import ECHO, report_on, write_solved

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    write_solved(folder, base=[0] * 6, trained=[1] * 6)
    return report_on(folder, {ECHO: {}}) / "report.html"


def test_calls_and_results_are_folded_and_seats_have_their_players(open_page):
    page = open_page(width=390)
    page.get_by_label("Who").select_option("trained")
    page.locator("#episodes a").first.click()
    chats = page.locator("#episode .chat")
    expect(chats).to_have_count(2)  # the browser tells the page of a new address only some time after the click
    base, trained = chats.all()
    expect(trained.locator(".turn b").first).to_have_text("solver: Trained model")
    call, result = (trained.locator("details", has_text="Calls add"), trained.locator("details", has_text="Result"))
    expect(call.locator("pre")).to_be_hidden()
    call.locator("summary").click()
    expect(call.locator("pre")).to_have_text('<tool_call>{"name": "add"}</tool_call>')
    result.locator("summary").click()
    expect(result.locator("pre")).to_have_text(re.compile(r"Sum: \d"))
    expect(trained.locator("details", has_text="Reads").locator("pre")).to_have_text(re.compile(r"What is \d \+ 1\?"))
    expect(base.locator("summary", has_text="Malformed call: invalid json")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert serious_violations(page) == []


def test_what_tools_said_is_found_by_searching(open_page):
    page = open_page()
    page.get_by_label("Who").select_option("trained")
    expect(page.locator("#episodes a")).to_have_count(6)
    page.get_by_label("What was said").fill("SUM: 6")
    expect(page.locator("#episodes a")).to_have_text("Trained model: reward 1.000, passed (held-5)")
    page.get_by_role("button", name="Show all").click()
    page.locator("select[name=step]").select_option("4")
    expect(page.locator("#episodes a")).to_have_count(6)
    expect(page.locator("#episodes a").first).to_have_text("In training, step 4: reward 1.000, passed (held-0)")
