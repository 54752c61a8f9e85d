"""The pages as Chromium shows them, without a network: nothing may be missing, in error, or wider than the screen."""

from __future__ import annotations

import html
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from simulation import INSPECTION, MATCH, MIB, failure, results_of, trial

from runners.diagnosis.records import UnitCost
from runners.trial import Prediction, TrialStatus, Verdict, Verification
from search_spaces.model_shape import BlockList
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy, Region
from tuner.report import front_html, report_html
from tuner.results import StudyResults
from tuner.speed_ratio import Playoff
from tuner.summary import summarize

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")

UNITS = (("attention", "self_attn"), ("mlp", "feed_forward"))
#: What runs in the page: names of CSS variables to colors as the browser writes them.
RESOLVE = """name => {
    const probe = document.body.appendChild(document.createElement("i"));
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
}"""

#: What reaches beyond the right edge of the screen, tables that scroll in their own boxes apart.
TOO_WIDE = """[...document.querySelectorAll("p, li, dd, h1, h2, h3, figure, .track")]
    .filter(element => element.getBoundingClientRect().right > innerWidth)
    .map(element => element.textContent)"""


def deep_policy(size: int) -> RecomputePolicy:
    regions = (Region(0, 39, "block"), Region(40, 87, "segment", 7), Region(88, 110, "attention+mlp"))
    decoder = BlockListPlacement("model.decoder.layers", 126, UNITS, regions)
    return RecomputePolicy(
        BatchShape.split(global_batch_size=2, micro_batch_size=size),
        (decoder, BlockListPlacement("model.encoder.layers", 24, UNITS, (Region(0, 11, "mlp"),))),
    )


def deep_results() -> StudyResults:
    """Two long lists of blocks, every way for a trial to end, predictions, a playoff, an ablation."""
    lists = (
        BlockList("model.decoder.layers", "DecoderLayer", 126, UNITS),
        BlockList("model.encoder.layers", "EncoderLayer", 24, UNITS),
    )
    inspection = INSPECTION.model_copy(update={"shape": replace(INSPECTION.shape, block_lists=lists)})
    prediction = Prediction(peak_memory_bytes=13 * MIB, time=0.7, time_deviation=0.04)
    mismatch = Verification(verdict=Verdict.MISMATCH, reason="the gradient of a very long name differs")
    winner = trial(1, "block", prediction=prediction).model_copy(update={"policy": deep_policy(2)})
    results = results_of(
        trial(0, peak_memory_bytes=90 * MIB, prediction=prediction),
        winner,
        trial(2, "none", 1, relative_speed=0.9, relative_speed_spread=0.01),
        trial(3, "mlp", relative_speed=1.1, verification=mismatch),
        trial(4, "attention", 1, relative_speed=0.8, peak_memory_bytes=11 * MIB, verification=MATCH),
        failure(5, TrialStatus.OUT_OF_MEMORY, "asked for 9 GiB"),
        failure(6, TrialStatus.FAILED, "<script>alert(1)</script> in " + "a_long_name_" * 20),
        inspection=inspection,
        playoff=Playoff(trials=(1, 2, 0), step_times_s=((1.0,) * 5, (1.2,) * 5, (0.8,) * 5)),
    )
    cost = UnitCost(
        blocks="model.decoder.layers",
        first=0,
        last=0,
        action="attention",
        micro_batch_size=2,
        saved_bytes=MIB,
        rebuild_time_s=0.001,
    )
    return results.model_copy(update={"unit_costs": [cost]})


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = deep_results()
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_text(report_html(results, summarize(results)))
    return file


@pytest.fixture(scope="module")
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens a file and waits until its figures are drawn; in the end nothing may have gone wrong in any page."""
    troubles: list[str] = []
    contexts = []

    def open_file(file: Path, *, width: int = 1280, scheme: str = "light") -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda request: troubles.append(request.url) if request.url.startswith("http") else None)
        page.goto(file.as_uri())
        all_drawn = "document.querySelectorAll('figure.plot .canvas:not([data-drawn])').length === 0"
        page.wait_for_function(all_drawn)
        return page

    yield open_file
    for context in contexts:
        context.close()
    assert troubles == []


@pytest.fixture(scope="module")
def wide_page(open_page: Callable[..., Page], report: Path) -> Page:
    """The report on a wide screen; each test leaves it as it was."""
    return open_page(report)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_everything_is_drawn_within_the_width_of_the_screen(
    open_page: Callable[..., Page], wide_page: Page, report: Path, width: int, scheme: str
) -> None:
    page = wide_page if width == 1280 else open_page(report, width=width, scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.locator("figure.plot .main-svg").count() >= 5
    assert page.evaluate(TOO_WIDE) == []
    assert page.locator(".strip li").count() == 126 + 24
    ink = page.evaluate(RESOLVE, "--ink")
    tick = page.locator(".front .xtick text").first
    assert tick.evaluate("element => getComputedStyle(element).fill") == ink, "figures have the page's colors"
    page_color = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert page_color == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(17, 21, 26)")


def test_hover_tells_the_policy_and_its_figures(wide_page: Page) -> None:
    page = wide_page
    star = page.locator(".front .scatterlayer .trace:last-child .points path").first
    star.scroll_into_view_if_needed()
    box = star.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector(".front .hoverlayer .hovertext")
    told = page.locator(".front .hoverlayer .hovertext").text_content()
    assert told is not None
    assert "model.decoder.layers: block[0-39]" in told
    assert "peak 12 MiB" in told
    assert "trial 1: best" in told


def test_a_change_between_light_and_dark_repaints_the_figures(wide_page: Page) -> None:
    page = wide_page
    fill = "getComputedStyle(document.querySelector('.front .xtick text')).fill"
    before = page.evaluate(fill)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"{fill} !== '{before}'")
    assert page.evaluate(fill) == page.evaluate(RESOLVE, "--ink")
    page.emulate_media(color_scheme="light")
    page.wait_for_function(f"{fill} === '{before}'")


def test_a_button_shows_what_lies_outside_the_first_view(wide_page: Page) -> None:
    page = wide_page
    right_end = "document.querySelector('.front .canvas')._fullLayout.xaxis.range[1]"
    assert page.evaluate(right_end) < 30, "around the cap of 20 MiB, so that the front can be seen"
    page.get_by_role("button", name="all 5 measured trials").click()
    page.wait_for_function(f"{right_end} > 90")
    near = page.get_by_role("button", name="around the cap")
    assert near.get_attribute("aria-pressed") == "false"
    near.click()
    page.wait_for_function(f"{right_end} < 30")


def test_pages_work_inside_a_sandboxed_frame(open_page: Callable[..., Page], report: Path, tmp_path: Path) -> None:
    """As MLflow shows artifacts: scripts may run, and everything else of the browser is out of reach."""
    front = tmp_path / "front.html"
    front.write_text(front_html(deep_results()))
    for number, file in enumerate((report, front)):
        content = html.escape(file.read_text())
        frame = f'<iframe sandbox="allow-scripts" style="width:99%;height:800px" srcdoc="{content}"></iframe>'
        outer = tmp_path / f"outer-{number}.html"
        outer.write_text(f"<!doctype html><link rel='icon' href='data:,'>{frame}")
        inside = open_page(outer).frame_locator("iframe")
        inside.locator(".front .canvas[data-drawn] .main-svg").first.wait_for()
