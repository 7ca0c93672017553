"""The report in a real browser."""

import json
import shutil
import subprocess

import pytest
from playwright.sync_api import expect

from tests.studies.asking.made import LONG_WORDS
from tests.studies.conftest import serious_violations
from tests.workspaces import ROOT

pytestmark = pytest.mark.slow
CUT = "[...document.querySelectorAll('.scroll:not(.boards)')].filter(e => e.scrollWidth > e.clientWidth).map(e => e.ariaLabel)"


@pytest.fixture(scope="module")
def report(run):
    return run / "reports/report.html"


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1440, "dark")])
def test_it_fits_the_screen_and_all_can_read_it(open_page, width, scheme):
    page = open_page(width, scheme)
    page.locator("#episodes a").first.click()
    expect(page.locator("#episode .chat")).to_have_count(2)
    for pixels in (390, 1440, width):
        page.set_viewport_size({"width": pixels, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") == pixels
        # No table is cut either; those of the dialogue browser may scroll.
        assert page.evaluate(CUT) == []
    assert serious_violations(page) == []


@pytest.mark.parametrize("width", [390, 1440])
def test_it_opens_on_the_typical_pair_and_breaks_no_number(open_page, width):
    page = open_page(width)
    board = page.locator(".shown .pair").get_attribute("data-task")
    expect(page.locator("#episode h3")).to_have_text(f"Task {board}")
    expect(page.locator("#episode .chat")).to_have_count(2)
    assert board in page.locator("#episodes a").first.inner_text()
    lines = "spans => spans.map(span => span.getClientRects().length)"
    assert set(page.locator("td span").evaluate_all(lines)) <= {0, 1}  # those that are folded have none


def test_filters_and_search(open_page):
    page = open_page()
    count = page.locator("#count")

    def shown():
        return int(count.inner_text().split()[0])

    everything = shown()
    assert everything > 100
    page.get_by_label("Who").select_option("trained")
    trained = shown()
    assert 0 < trained < everything
    assert set(page.locator("#episodes a").all_inner_texts()) == {
        text for text in page.locator("#episodes a").all_inner_texts() if text.startswith("Trained model")
    }
    page.get_by_label("Questions from").fill("4")
    assert 0 < shown() < trained
    page.get_by_label("Reward to").fill("0")
    assert shown() == 0
    page.get_by_role("button", name="Show all").click()
    expect(count).to_contain_text(f"{everything} of {everything}")
    page.locator("select[name=step]").select_option("4")
    assert all("step 4" in text for text in page.locator("#episodes a").all_inner_texts()) and 0 < shown() <= 6
    page.get_by_role("button", name="Show all").click()
    page.get_by_label("What was said").fill("BROKEN INTO")
    expect(count).to_contain_text(f"1 of {everything}")
    page.locator("#episodes a").click()
    expect(page.locator("#episode .turn", has_text=LONG_WORDS)).to_be_visible()  # as text, and only as text
    assert page.title().startswith("Does a language model")


def test_a_deep_link_opens_its_dialogue_beside_the_other_models(open_page):
    fragment = open_page().locator("#episodes a", has_text="Trained").nth(2).get_attribute("href")
    page = open_page(fragment=fragment)
    base, trained = page.locator("#episode .chat").all()
    assert "Base model" in base.inner_text() and "Trained model" in trained.inner_text()
    board = fragment.split("%2F")[2]
    expect(page.locator("#episode h3")).to_have_text(f"Task {board}")
    expect(page.locator("#episode h3")).to_be_in_viewport()
    expect(page.locator("#episodes a[aria-current]")).to_have_attribute("href", fragment)
    page.evaluate("location.hash = '#dialogue=nowhere'")
    expect(page.locator("#episode")).to_contain_text("not in this sample")
    page.go_back()
    expect(page.locator("#episode h3")).to_have_text(f"Task {board}")


def test_a_board_shows_what_was_seen_asked_and_assigned(open_page):
    page = open_page()
    page.get_by_label("Who").select_option("base")
    page.locator("#episodes a").first.click()
    boards = page.locator("#episode .chat").first.locator("table.board")
    boards.first.wait_for()
    agent, partner = boards.all()
    assert agent.locator(".asked").count() == 1  # the base model asks for one cell
    assert "asked, question 1: useful" in agent.locator(".asked").get_attribute("title")
    assert agent.locator(".final").count() == partner.locator(".final").count() == 3
    assert agent.locator(".known").count() < partner.locator(".known").count()


def test_in_print_everything_stands_on_paper(open_page, tmp_path):
    page = open_page()
    page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert (tmp_path / "report.pdf").stat().st_size > 50_000
    page.emulate_media(media="print")
    expect(page.locator("form")).to_be_hidden()
    expect(page.locator("h1")).to_be_visible()
    expect(page.locator(".shown .turn").first).to_be_visible()  # the dialogues of the drawn board


def test_dvcs_own_views_fit_a_screen_and_need_no_network(run, browser, tmp_path):
    shutil.copytree(run / "reports", tmp_path / "reports")
    shutil.copy(ROOT / "dvc.yaml", tmp_path)

    def dvc(*arguments):
        return subprocess.run(["dvc", *arguments], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    dvc("init", "--no-scm")
    [row] = json.loads(dvc("metrics", "show", "--json"))[""]["data"].values()
    assert {"reward", "gain", "question_count", "pearson_held_out", "verdict"} <= row["data"].keys()
    assert len(row["data"]) <= 10 and row["data"]["verdict"] == "supported"
    dvc("plots", "show")
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.goto((tmp_path / "dvc_plots/index.html").as_uri())
    widths = page.locator("img").evaluate_all("pictures => pictures.map(one => one.naturalWidth)")
    assert len(widths) == len(list((run / "reports/figures").iterdir())) == 3 and min(widths) > 100
    context.close()
