"""The report in a real browser: Debian's Chromium, opened from disk."""

import shutil
import subprocess
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect, sync_playwright

from slim_rl.rollout.episode import Turn
from slim_rl.rollout.store import write_shard
from tests.analysis.conftest import make_episodes
from tests.analysis.test_report import analyze

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LONG_WORDS = "<script>document.title = 'broken into'</script> & \"quotes\" </script>"

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="Chromium is not installed and could not be (Debian: apt-get install chromium)"
)


@pytest.fixture(scope="module")
def report(tmp_path_factory, write_players, write_training, write_intervention) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    (folder / "params.yaml").write_text("")
    write_training(folder / "data/rollouts", steps=9)
    held_out = dict(
        base=dict(reward=0.8, useful=0.5, wasted=1),
        trained=dict(reward=0.95, useful=5),
        bayes=dict(reward=0.78),
    )
    write_players(folder / "data/episodes/held-out", **held_out)
    people = list(make_episodes("humans", 0.92, useful=3, games=50))
    people[0].turns.insert(2, Turn("player-2", "", f"[message] {LONG_WORDS}"))
    write_shard(folder / "data/episodes/human-boards/humans/00000.parquet", people)
    write_intervention(folder / "data/episodes/intervention", base=0.02, trained=0.03)
    done = analyze(folder)
    assert done.returncode == 0, done.stderr
    return folder / "reports/report.html"


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, report):
    """Opens the report; at the end nothing but its file was asked for, and the console is silent."""
    contexts, said, requests = [], [], []

    def open_(width=1440, scheme="light", fragment=""):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(report.as_uri() + fragment)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert said == []
    assert {url.partition("#")[0] for url in requests} == {report.as_uri()}


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_the_screen_and_everybody_can_read_it(open_page, width, scheme):
    page = open_page(width, scheme)
    page.locator("#episodes a").first.click()
    expect(page.locator("#episode .chat")).to_have_count(2)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    for details in page.locator("details").all():
        details.locator("summary").first.click()
    found = Axe().run(page).response["violations"]
    serious = [(v["id"], v["nodes"][0]["html"]) for v in found if v["impact"] in ("serious", "critical")]
    assert serious == []


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
    page.get_by_label("Questions from").fill("7")
    assert 0 < shown() < trained
    page.get_by_label("Reward to").fill("0")
    assert shown() == 0
    page.get_by_role("button", name="Show all").click()
    expect(count).to_contain_text(f"{everything} of {everything}")
    page.locator("select[name=step]").select_option("8")
    assert (
        all("step 8" in text for text in page.locator("#episodes a").all_inner_texts()) and 0 < shown() <= 6
    )
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
    expect(page.locator("#episode h3")).to_have_text(f"Game board-{board}")
    expect(page.locator("#episode h3")).to_be_in_viewport()
    expect(page.locator("#episodes a[aria-current]")).to_have_attribute("href", fragment)
    page.evaluate("location.hash = '#dialogue=nowhere'")
    expect(page.locator("#episode")).to_contain_text("not in this sample")
    page.go_back()
    expect(page.locator("#episode h3")).to_have_text(f"Game board-{board}")


def test_a_board_shows_what_was_seen_asked_and_assigned(open_page):
    page = open_page()
    page.get_by_label("Who").select_option("base")
    page.get_by_label("Questions to").fill("1")
    page.get_by_label("Questions from").fill("1")
    page.locator("#episodes a").first.click()
    boards = page.locator("#episode .chat").first.locator("table.board")
    boards.first.wait_for()
    agent, partner = boards.all()
    assert agent.locator(".known").all_inner_texts() == [
        "44 \u2605"
    ]  # the one cell that it sees, also assigned
    assert agent.locator(".asked").count() == 1  # and also the one it asked about
    assert agent.locator(".asked").get_attribute("title") == (
        "Ava Li, BLEU: seen; asked, question 1: known, answered with a number; assigned in the end"
    )
    assert agent.locator(".final").count() == partner.locator(".final").count() == 8
    assert partner.locator(".known").count() == 64


def test_in_print_everything_stands_on_paper(open_page, tmp_path):
    page = open_page()
    page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert (tmp_path / "report.pdf").stat().st_size > 50_000
    page.emulate_media(media="print")
    expect(page.locator("form")).to_be_hidden()
    expect(page.locator("h1")).to_be_visible()


def test_chromium_is_debians():
    version = subprocess.run([CHROMIUM, "--version"], capture_output=True, text=True).stdout
    assert version.startswith("Chromium")
