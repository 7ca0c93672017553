"""Reports in a real browser: Debian's Chromium, pages opened from disk."""

import shutil

import pytest

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


def pytest_collection_modifyitems(items):
    """Tests in the browser come last: until it is closed, an event loop runs in this thread, so no other can start."""
    items.sort(key=lambda item: "browser" in item.fixturenames)


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("Chromium is not installed and could not be (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, report):
    """Opens `report`, a fixture of the test's module. At the end, the page has requested only its own file and has
    written nothing to the console."""
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


def serious_violations(page):
    """Violations of the rules of accessibility that axe-core knows."""
    from axe_playwright_python.sync_playwright import Axe

    for details in page.locator("details").all():
        if details.is_visible():
            details.locator("summary").first.click()
    found = Axe().run(page).response["violations"]
    return [(v["id"], v["nodes"][0]["html"]) for v in found if v["impact"] in ("serious", "critical")]
