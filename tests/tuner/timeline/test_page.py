"""The page as Chromium shows it, without a network."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from simulation import policy
from traced_steps import plain_step

from runners.step_timeline.records import TracedStep
from tuner.timeline.page import timeline_html

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Opens the page of two steps; at the end of the test nothing may have gone wrong in it."""
    troubles: list[str] = []
    contexts = []
    file = tmp_path / "timeline.html"
    file.write_text(timeline_html("study", [plain_step(policy("block")), plain_step()], num_blocks=1))

    def open_file(*, width: int = 1280, scheme: str = "light") -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.goto(file.as_uri())
        page.wait_for_function("document.querySelectorAll('figure.plot .canvas:not([data-drawn])').length === 0")
        return page

    yield open_file
    for context in contexts:
        context.close()
    assert troubles == []


@needs_chromium
@pytest.mark.parametrize(("width", "scheme"), [pytest.param(1280, "dark", marks=pytest.mark.slow), (400, "light")])
def test_both_steps_are_drawn_within_the_width_of_the_screen(
    open_page: Callable[..., Page], width: int, scheme: str
) -> None:
    page = open_page(width=width, scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.locator(".barlayer .trace").count() > 0
    heights = page.evaluate("[...document.querySelectorAll('.canvas')].map(each => each.clientHeight)")
    assert heights == [380, 380]
    axes = page.evaluate("[...document.querySelectorAll('.canvas')].map(each => each._fullLayout.xaxis.range)")
    assert axes == [[0, 100], [0, 100]]
    page.locator("details summary").first.click()
    assert page.locator("details[open] tbody tr").count() == len(plain_step().tensors)
    assert page.evaluate("document.documentElement.scrollWidth") == width


@needs_chromium
def test_hover_tells_all_that_is_known_of_a_tensor(open_page: Callable[..., Page]) -> None:
    page = open_page()
    label = page.locator(".step-1 .bartext", has_text="attn.q mm, 1.0 MiB").first
    label.scroll_into_view_if_needed()
    box = label.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 5, box["y"] + box["height"] / 2)
    page.wait_for_selector(".step-1 .hoverlayer .hovertext")
    told = page.locator(".step-1 .hoverlayer .hovertext").text_content()
    assert told is not None
    assert "1.0 MiB activation, h.0, attention" in told
    assert "born 9.00 ms, kept 10.00 ms, last use 80.00" in told


def test_a_step_without_a_trace_has_its_reason_and_no_figure() -> None:
    refused = TracedStep(policy=policy("none"), failure="it does not fit the device's memory")
    page = timeline_html("study", [plain_step(policy("block")), refused], num_blocks=None)
    assert "There is no trace of none @2x1: it does not fit the device&#39;s memory." in page
    assert page.count('<figure class="plot') == 1


def test_names_of_the_user_s_model_are_text() -> None:
    step = plain_step()
    odd = step.tensors[1].model_copy(update={"block": "h.<b>0", "made_by": "</script>: aten::mm"})
    groups = (step.groups[0].model_copy(update={"block": "h.<b>0"}),)
    page = timeline_html("<i>study", [step.model_copy(update={"tensors": (odd,), "groups": groups})], num_blocks=1)
    body = page[page.index("<main>") : page.index("</main>")]
    assert "<b>" not in body
    assert "<i>" not in body
    assert body.count("</script>") == 1
