"""Options that are right by themselves and do not go together."""

from __future__ import annotations

import pytest
from search_texts import refusal
from search_texts import with_sections as _with


@pytest.mark.usefixtures("folder")
class TestContradictions:
    @pytest.mark.parametrize(
        ("text", "lines"),
        [
            (
                _with(batch="{global_batch_size: 12, micro_batch_sizes: [5, 6,\n 8]}"),
                [
                    "2: batch.micro_batch_sizes[0] is 5, which does not divide batch.global_batch_size 12; "
                    "allowed: 1, 2, 3, 4, 6, 12; change one of the two",
                    "3: batch.micro_batch_sizes[2] is 8, which does not divide batch.global_batch_size 12; "
                    "allowed: 1, 2, 3, 4, 6, 12; change one of the two",
                ],
            ),
            (
                _with(measurement="{min_steps: 9, max_steps: 8}"),
                [
                    "4: measurement.min_steps is 9, above measurement.max_steps 8; lower the first or raise the second",
                ],
            ),
            (
                _with(measurement="{min_steps: 51}"),
                [
                    "4: measurement.min_steps is 51, above measurement.max_steps 50; "
                    "lower the first or raise the second",
                ],
            ),
            (
                _with(placement="{units: {mlp: m}, actions: [mlp, attention]}"),
                [
                    "4: placement.actions[1] is 'attention', but placement.units has no attention; "
                    "allowed: none, block, segment, selective, offload, mlp, or units joined by +",
                ],
            ),
            (
                _with(placement="{actions: [block, mlp+attention, attention+mlp]}"),
                [
                    "4: placement.actions[2] is attention+mlp, as placement.actions[1] is already; "
                    "name each once, remove one of the two",
                ],
            ),
            (
                _with(placement="{actions: [block], segment_sizes: [2, 2]}"),
                [
                    "4: placement.segment_sizes is set, but placement.actions has no segment; "
                    "add it there or remove segment_sizes",
                    "4: placement.segment_sizes[1] is 2, as placement.segment_sizes[0] is already; "
                    "name each once, remove one of the two",
                ],
            ),
            (
                _with(model="{factory: 'timm:x', compile_memory_budget: 0.5}"),
                [
                    "1: model.compile_memory_budget is 0.5, but model.compile is null; allowed with model.compile "
                    "blocks or model: remove compile_memory_budget or write one of these",
                ],
            ),
            (
                _with(
                    model="{factory: 'timm:x', compile: model, compile_memory_budget: [0.5, 1, 0.5]}",
                    placement="{target: huggingface}",
                ),
                [
                    "1: model.compile_memory_budget is [0.5, 1, 0.5], but placement.target huggingface cannot say a "
                    "budget of the compiler; allowed with placement.target policy or null: remove "
                    "compile_memory_budget or target",
                    "1: model.compile_memory_budget[2] is 0.5, as model.compile_memory_budget[0] is already; "
                    "name each once, remove one of the two",
                ],
            ),
            (
                _with(runner="{device: cuda, resources_per_trial: {CPU: 2}}"),
                [
                    "4: runner.resources_per_trial asks CPU, but runner.device cuda needs GPU; add GPU: 1",
                ],
            ),
            (
                _with(runner="{device: cpu, resources_per_trial: {CPU: 2, NPU: 1}}"),
                [
                    "4: runner.resources_per_trial asks CPU, NPU, but runner.device cpu uses no NPU; "
                    "remove it or change the device",
                ],
            ),
        ],
    )
    def test_both_options_are_named(self, text: str, lines: list[str]) -> None:
        assert refusal(text) == [f"search.yaml:{line}" for line in lines]

    @pytest.mark.parametrize(
        "text",
        [
            _with(batch="{global_batch_size: x, micro_batch_sizes: [3]}"),
            _with(measurement="{min_steps: 9, max_steps: x}"),
            _with(runner="{device: x, resources_per_trial: {CPU: 2}}"),
            _with(placement="{units: x, actions: [router]}"),
        ],
    )
    def test_nothing_is_said_about_an_option_whose_partner_is_wrong_itself(self, text: str) -> None:
        (line,) = refusal(text)
        assert " is 'x'; allowed" in line

    def test_entries_are_still_checked_where_their_neighbours_are_wrong(self) -> None:
        lines = refusal(_with(batch="{global_batch_size: 8, micro_batch_sizes: [x, 3, 1, 0]}"))
        assert [line.split(" is ")[0] for line in lines] == [
            f"search.yaml:2: batch.micro_batch_sizes[{index}]" for index in (0, 1, 3)
        ]
        lines = refusal(_with(placement="{units: {mlp: 5, router: 'r'}, actions: [mlp, router, rooter]}"))
        assert [line.split(" is ")[0] for line in lines] == [
            "search.yaml:4: placement.units.mlp",
            "search.yaml:4: placement.actions[2]",
        ]

    @pytest.mark.parametrize(
        ("section", "others", "key"),
        [
            ("model", "factory: huggingface:gpt2, compile: model, ", "compile_memory_budget"),
            ("batch", "global_batch_size: 8, ", "micro_batch_sizes"),
            ("batch", "global_batch_size: 8, ", "sequence_length"),
            ("placement", "", "blocks"),
            ("placement", "", "actions"),
            ("placement", "", "segment_sizes"),
        ],
    )
    def test_wrong_entries_of_a_list_are_named(self, section: str, others: str, key: str) -> None:
        lines = refusal(_with(**{section: f"{{{others}{key}: [{{a: 1}}, -7.5, null]}}"}))
        assert [index for index in range(3) if any(f" {section}.{key}[{index}]" in line for line in lines)] == [0, 1, 2]
