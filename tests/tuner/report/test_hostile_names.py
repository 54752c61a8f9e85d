"""Names from others in the pages, as Chromium shows them: they are text, whatever is in them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from simulation import INSPECTION, MIB, failure, results_of, trial
from traced_steps import group, plain_step, saver, tensor

from runners.trial import TrialResult, TrialStatus, Verdict, Verification
from search_spaces.model_shape import BlockList, ModelShape
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy, Region
from tuner.report import front_html, report_html
from tuner.results import StudyResults
from tuner.speed_ratio import Playoff
from tuner.summary import summarize
from tuner.timeline.page import timeline_html

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")

HOSTILE = (
    "</script><script>hit=1</script>\"'><img src=x onerror=hit=1><a href=javascript:hit=1>x</a>"
    "<svg onload=hit=1>{{7*191}}${7*191}%s"
)
UNITS = (("attention", f"{HOSTILE}a"), ("mlp", HOSTILE))
#: What runs in the page: whatever only markup of ours may have made.
MADE = "[typeof hit, document.querySelectorAll('img, iframe, object, embed, a[href^=javascript], [onload]').length]"


def placed(number: int, *regions: Region, size: int = 2) -> TrialResult:
    batch = BatchShape.split(global_batch_size=2, micro_batch_size=size)
    policy = RecomputePolicy(batch, (BlockListPlacement(HOSTILE, 2, UNITS, regions),)).canonical()
    proof = Verification(verdict=Verdict.MATCH, reason=HOSTILE, worst_tensor=HOSTILE, reference=HOSTILE)
    changes = {"policy": policy, "device": HOSTILE, "node": HOSTILE, "verification": proof}
    return trial(number, peak_memory_bytes=(20 - 3 * number) * MIB).model_copy(update=changes)


def hostile_results() -> StudyResults:
    shape = ModelShape(1000, (BlockList(HOSTILE, HOSTILE, 2, UNITS, (), HOSTILE),), (HOSTILE,))
    trials = [placed(0), placed(1, Region(0, 1, "block")), placed(2, Region(0, 0, "mlp")), placed(3, size=1)]
    broken = failure(4, TrialStatus.FAILED, HOSTILE).model_copy(update={"policy": placed(4).policy})
    return results_of(
        *trials,
        broken,
        study=HOSTILE,
        stop_reason=HOSTILE,
        search={"model": {"factory": HOSTILE, "dtype": HOSTILE}, "memory_cap": HOSTILE, "search": {"sampler": HOSTILE}},
        environment={HOSTILE: HOSTILE, "torch": HOSTILE, "device": HOSTILE},
        inspection=INSPECTION.model_copy(update={"shape": shape, "model_class": HOSTILE}),
        baseline_key=trials[0].policy.key,
        playoff=Playoff(trials=(1, 2), step_times_s=((1.0, 1.1), (1.2, 1.3))),
    )


def timeline_page() -> str:
    step = plain_step().model_copy(
        update={
            "policy": placed(1, Region(0, 1, "block")).policy,
            "tensors": (tensor(HOSTILE, HOSTILE, saver(HOSTILE, 0.01, 0.08, operator=HOSTILE), made_by=HOSTILE),),
            "groups": (group(HOSTILE, HOSTILE, 1),),
        }
    )
    return timeline_html(HOSTILE, [step], num_blocks=None)


def test_no_name_becomes_a_part_of_a_page(tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    results = hostile_results()
    pages = {"report": report_html(results, summarize(results)), "front": front_html(results), "time": timeline_page()}
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        for name, text in pages.items():
            file = tmp_path / f"{name}.html"
            file.write_text(text)
            page.goto(file.as_uri())
            page.wait_for_function("!document.querySelector('figure.plot .canvas:not([data-drawn])')")
            for point in page.locator(".points path").all()[:3]:
                point.hover(force=True)
            assert page.evaluate(MADE) == ["undefined", 0], name
            shown = page.locator("body").inner_text()
            assert "onerror=hit=1" in shown, "the name is shown, as text"
            assert "1337" not in shown, "nothing in it was computed"
        browser.close()
    assert all(url.startswith("file:") for url in requests)
