"""Many runs on one page, in a real browser."""

import json

import pandas as pd
import pytest

from slim_rl.analysis.comparison import Run, grouped, render
from stages.compare import compared
from tests.studies.conftest import serious_violations

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def report(run, tmp_path_factory):
    """Five seeds and three runs of a control, with the numbers of one run."""
    folder = tmp_path_factory.mktemp("compared")
    [metrics] = pd.json_normalize(json.loads((run / "reports/metrics.json").read_text())).to_dict("records")
    curves = pd.read_csv(run / "reports/data/training-intervals.csv")

    def one(name, seed, stake):
        parameters = {"seed": seed, "games.matching.stake": stake}
        return Run(f"{name}-{seed}", "matching", "asking", metrics, parameters, lambda table: curves)

    runs = [one("control-of-a-long-name", seed, 1.2) for seed in range(3)] + [one("seed", s, 1.6) for s in range(5)]
    page = folder / "comparison.html"
    page.write_text(render(grouped(runs, compared), folder))
    return page


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1440, "dark")])
def test_it_fits_the_screen_and_all_can_read_it(open_page, width, scheme):
    page = open_page(width, scheme)
    assert page.locator("h2").all_inner_texts()[:2] == ["seed: 5 runs", "control-of-a-long-name: 3 runs"]
    assert page.locator(".verdict").first.inner_text().startswith("Supported: the model learnt")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    # On a phone the table of five runs scrolls in itself: no number breaks across lines.
    scrolling = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth).length"
    assert page.evaluate(scrolling) == (1 if width == 390 else 0)
    assert len(page.locator("main").inner_text().split()) < 1500
    assert serious_violations(page) == []
