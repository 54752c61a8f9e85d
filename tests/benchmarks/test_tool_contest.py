from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from our_searches import our_searches
from tool_candidates import Candidate, existing_tools
from tool_contest import Contest, Deadline, OutOfTimeError
from tool_record import ToolRecord
from tool_work import Work
from torch import nn

from runners.devices.registry import open_device
from tuner.search_file.duration import parse_duration

SEARCH = """
study: tiny
model: {factory: "runners.workloads.gpt:gpt", args: {n_layer: 2, n_embd: 16, n_head: 2, vocab_size: 32}}
batch: {global_batch_size: 2, sequence_length: 16}
memory_cap: 1GiB
search: {time_limit: 1s}
"""


def work_of(text: str, folder: Path) -> Work:
    path = folder / "search.yaml"
    path.write_text(text)
    return Work.read(path, num_rounds=2, with_compiler=False)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Work:
    return work_of(SEARCH, tmp_path_factory.mktemp("work"))


PLAIN = Candidate("plain", "as it is", 2, lambda _: None)
HALVED = Candidate("plain", "as it is", 1, lambda _: None)


def contest(work: Work, record: ToolRecord) -> Contest:
    device = open_device(work.spec.device)
    return Contest(work, device, record, save=lambda: None, say=lambda _: None)


def breaks_after(num_steps: int) -> Callable[[nn.Module], Any]:
    """Puts a forward on the model that fails from then on."""

    def put_on(model: nn.Module) -> None:
        forward, left = model.forward, [num_steps]

        def failing(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise RuntimeError("no more")
            return forward(*args, **kwargs)

        model.forward = failing

    return put_on


def test_a_stopped_contest_goes_on_in_another_process_without_measuring_peaks_again(work: Work) -> None:
    record = ToolRecord(identity={})
    first = contest(work, record)
    first.enter(PLAIN)
    first.enter(HALVED)
    with pytest.raises(OutOfTimeError, match=r"^$"):
        first.run_rounds(Deadline(time.monotonic()))
    peaks = dict(record.peaks)
    assert list(peaks) == ["plain: as it is @2", "plain: as it is @1"]
    assert peaks["plain: as it is @2"].peak_bytes > peaks["plain: as it is @1"].peak_bytes
    second = contest(work, record)
    second.enter(PLAIN)
    second.enter(HALVED)
    second.run_rounds(Deadline(None))
    assert record.peaks == peaks
    assert [sorted(each) for each in record.rounds] == [sorted(peaks)] * work.num_rounds


def test_what_fails_is_a_line_of_the_table_and_the_others_go_on(work: Work) -> None:
    record = ToolRecord(identity={})
    running = contest(work, record)
    running.enter(PLAIN)
    running.enter(Candidate("broken", "at once", 2, breaks_after(0)))
    running.enter(Candidate("broken", "later", 2, breaks_after(3)))
    running.run_rounds(Deadline(None))
    assert record.failures == {
        "broken: at once @2": "RuntimeError: no more",
        "broken: later @2": "RuntimeError: no more",
    }
    assert list(record.rounds[-1]) == ["plain: as it is @2"]


def test_what_trains_another_model_is_found_out(work: Work) -> None:
    def other_gradients(model: nn.Module) -> None:
        next(model.parameters()).register_hook(lambda gradient: 1.01 * gradient)

    record = ToolRecord(identity={})
    running = contest(work, record)
    running.enter(PLAIN)
    running.enter(HALVED)
    running.enter(Candidate("right", "plain", 1, lambda _: None, HALVED.name))
    running.enter(Candidate("wrong", "hooked", 2, other_gradients, PLAIN.name))
    assert list(record.astray) == ["wrong: hooked @2"]
    assert 1e-4 < record.astray["wrong: hooked @2"] < 0.02
    assert record.failures == {}


def test_a_work_is_the_model_and_batch_of_a_search_file(work: Work) -> None:
    assert work.blocks == ("blocks",)
    assert work.micro_batch_sizes == (2, 1)
    assert set(work.search) == {"model", "batch", "search"}


def test_the_compiler_is_searched_for_blocks_and_the_whole_model_with_the_budgets_it_is_measured_with(
    work: Work,
) -> None:
    assert list(our_searches(work)) == ["as-it-is"]
    searches = our_searches(replace(work, with_compiler=True))
    assert {name: search["model"].get("compile") for name, search in searches.items()} == {
        "as-it-is": None,
        "compiled-blocks": "blocks",
        "compiled-model": "model",
    }
    for name in ("compiled-blocks", "compiled-model"):
        of_tool = {
            float(each.setting.removeprefix("budget "))
            for each in existing_tools(work.blocks, work.micro_batch_sizes, with_compiler=True)
            if each.tool == f"torch.compile, {name.removeprefix('compiled-')}"
        }
        assert {1.0, *searches[name]["model"]["compile_memory_budget"]} == of_tool
    assert searches["compiled-blocks"]["search"] == {"time_limit": "1s"}
    assert searches["compiled-model"]["search"] == {"time_limit": "2.000s"}


@pytest.mark.parametrize(("asked_s", "given_s"), [(0.2, 0.4), (366 * 86400, 366 * 86400)])
def test_the_longer_time_for_a_whole_model_is_one_that_a_search_file_may_say(
    work: Work, asked_s: float, given_s: float
) -> None:
    asked = replace(work, with_compiler=True, search_time_limit_s=asked_s)
    assert parse_duration(our_searches(asked)["compiled-model"]["search"]["time_limit"]) == given_s


def test_our_searches_find_a_factory_beside_the_search_file_and_choose_what_is_compiled(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("from runners.workloads.gpt import gpt as make\n")
    text = SEARCH.replace("runners.workloads.gpt:gpt", "own.py:make").replace("model: {", "model: {compile: blocks, ")
    model = work_of(text, tmp_path).search["model"]
    assert model["factory"] == f"{tmp_path.resolve() / 'own.py'}:make"
    assert "compile" not in model
