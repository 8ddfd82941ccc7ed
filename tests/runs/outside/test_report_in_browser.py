"""Reports in a real browser: nothing is fetched, nothing fails, everything can be seen and used."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dp_fedmed.commands.report import write_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]
PAGES = ("none", "hybrid", "cells", "sweep")

# Every visible text against what is painted behind it, by WCAG's formula.
CONTRASTS = """() => {
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => {
    const part = [r, g, b].map((v) => v / 255)
      .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2];
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const found = parse(getComputedStyle(at).backgroundColor);
      if (found.length === 3 || found[3] === 1) return found;
    }
    return [255, 255, 255];
  };
  const weak = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((c) => c.nodeType === 3 && c.textContent.trim());
    if (!own || ["SCRIPT", "OPTION"].includes(node.tagName) || !node.getClientRects().length) {
      continue;
    }
    const inside = node.namespaceURI.endsWith("svg");
    const style = getComputedStyle(node);
    const [a, b] = [light(parse(inside ? style.fill : style.color)), light(behind(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) weak.push(`${node.textContent.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return weak;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def pages(
    made_run: Callable[[str], Path], made_sweep: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("pages")

    def page(kind: str) -> Path:
        path = folder / f"{kind}.html"
        if not path.exists():
            source = made_sweep if kind == "sweep" else made_run(kind)
            write_report(source, output=path, runs=False)
        return path

    return page


class Opened:
    """A page with everything it said and asked for."""

    def __init__(self, browser: Any, path: Path, *, dark: bool = False, width: int = 1200) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
        )
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: self.said.append("a dialog opened"))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *exception: object) -> None:
        self.context.close()

    def colours(self, element: Any) -> int:
        """How many different colours are on the screen where an element is."""
        picture = Image.open(io.BytesIO(element.screenshot())).convert("RGB")
        return len(picture.getcolors(maxcolors=2**20) or [])


@pytest.mark.parametrize("kind", PAGES)
@pytest.mark.parametrize("look", ["light", "dark", "phone"])
def test_a_page_is_whole_readable_and_asks_for_nothing(
    browser: Any, pages: Callable[[str], Path], kind: str, look: str
) -> None:
    width = 360 if look == "phone" else 1200
    with Opened(browser, pages(kind), dark=look == "dark", width=width) as opened:
        page = opened.page
        assert opened.said == []
        others = [url for url in opened.asked[1:] if not url.startswith("data:")]
        assert others == [], "one file, no network"
        charts = page.locator("figure.chart svg").all()
        assert len(charts) >= 2
        for chart in charts:
            box = chart.bounding_box()
            assert box is not None
            assert box["width"] > 250
            assert box["height"] > 100
            assert opened.colours(chart) > 20, "a blank picture has one colour"
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for details in page.locator("details").all():
            details.evaluate("node => { node.open = true; }")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(CONTRASTS) == []
        small = page.evaluate(
            "[...document.querySelectorAll('figure.chart svg text')].map((n) => "
            "n.getBoundingClientRect().height).filter((h) => h > 0 && h < 7).length"
        )
        assert small == 0, "letters that nobody can read"


def test_the_table_is_sorted_by_numbers_and_filtered(
    browser: Any, pages: Callable[[str], Path]
) -> None:
    with Opened(browser, pages("sweep")) as opened:
        page = opened.page
        rows = page.locator("#runs-table tbody tr")
        heading = page.locator("#runs-table th button", has_text="test ")
        column = 1 + [
            text.startswith("test ") for text in page.locator("#runs-table th").all_inner_texts()
        ].index(True)
        cells = page.locator(f"#runs-table tbody td:nth-child({column})")
        for direction, reverse in (("ascending", False), ("descending", True)):
            heading.click()
            assert heading.locator("..").get_attribute("aria-sort") == direction
            shown = cells.all_inner_texts()
            numbers = [float(text) for text in shown if text != "–"]
            assert numbers == sorted(numbers, reverse=reverse)
            assert len(numbers) == 6
            assert shown[-1] == "–", "a job without a result comes last"
        page.locator("[data-filter=style]").select_option("none")
        assert rows.filter(visible=True).count() == 2
        page.locator("[data-filter=style]").select_option("")
        page.locator("[data-filter=text]").fill("sample COMPLETED")
        assert rows.filter(visible=True).count() == 4
        assert page.locator("[data-role=count]").inner_text() == "4 of 7 runs"
        page.locator("[data-filter=text]").fill("nothing like it")
        assert rows.filter(visible=True).count() == 0
        assert opened.said == []


def test_the_best_run_follows_the_epsilon(browser: Any, pages: Callable[[str], Path]) -> None:
    with Opened(browser, pages("sweep")) as opened:
        page = opened.page
        number, answer = (page.locator(f"[data-role={role}]") for role in ("number", "answer"))
        number.fill("1.5")
        assert answer.inner_text().startswith("sample, ε 1: validation 0.")
        marked = page.locator("#runs-table tr.best")
        assert [row.get_attribute("data-job") for row in marked.all()] == ["2", "3"]
        number.fill("0.2")
        assert answer.inner_text() == "No run spends as little as that."
        assert marked.count() == 0
        page.locator("[data-role=range]").fill("1000")
        assert float(number.input_value()) == pytest.approx(4.0, rel=1e-3)
        assert marked.count() == 2
        page.locator("[data-role=range]").fill("0")
        assert answer.inner_text().startswith("sample, ε 1:")
        number.fill("")
        assert answer.inner_text() == "Give an ε."
        assert opened.said == []


def test_print_shows_what_is_folded_away(browser: Any, pages: Callable[[str], Path]) -> None:
    with Opened(browser, pages("hybrid")) as opened:
        page = opened.page
        assert page.locator("details[open]").count() == 0
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.locator("details:not([open])").count() == 0
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.locator("details[open]").count() == 0
        assert page.pdf(format="A4").count(b"/Type /Page\n") > 1


def test_markup_in_names_and_settings_does_nothing(
    browser: Any, a_run: Callable[[str], Path]
) -> None:
    path, evil = a_run("none"), '"><img src=x onerror=alert(1)><script>alert(1)</script>'
    config = path / "config.yaml"
    text = config.read_text().replace("name: breast_cancer", f"name: {json.dumps(evil)}")
    config.write_text(text.replace("metric: balanced_accuracy", f"metric: {json.dumps(evil)}"))
    for name in ("evaluation.json", "partition.json"):
        (path / name).write_text(
            (path / name).read_text().replace("benign", "<svg/onload=alert(1)>")
        )
    write_report(path)
    with Opened(browser, path / "report.html") as opened:
        assert opened.said == []
        assert opened.page.locator("script").count() == 1
        assert opened.page.locator("img").count() == 0
        assert "onerror=alert(1)" in opened.page.locator("h1").inner_text()
