from __future__ import annotations

from typing import Any

import pytest

from runners.diagnosis.records import HeldTensors, PeakSplit, PlaceMemory
from runners.trial import MemoryByKind
from tuner.diagnosis.findings import floor_text, main_consumer_text, remedies_text, verdict_text

MIB = 2**20
LOGITS = HeldTensors(
    module="",
    stage="after",
    operator="aten._log_softmax",
    shape=(512, 50000),
    dtype="float32",
    kind="activations",
    count=1,
    num_bytes=100 * MIB,
)


def split(*, blocks: int = 0, loss: int = 0, states: tuple[int, int, int] = (1, 0, 2), **changes: Any) -> PeakSplit:
    """A peak in MiB: activations of the blocks, of the loss, and parameters, gradients and optimizer states."""
    kinds = dict.fromkeys(MemoryByKind.model_fields, 0)
    parameters, gradients, optimizer_states = (size * MIB for size in states)
    of_block = MemoryByKind(
        **{
            **kinds,
            "parameters": parameters,
            "gradients": gradients,
            "optimizer_states": optimizer_states,
            "activations": blocks * MIB,
        }
    )
    of_loss = MemoryByKind(**{**kinds, "activations": loss * MIB})
    total = MemoryByKind(**{kind: getattr(of_block, kind) + getattr(of_loss, kind) for kind in kinds})
    fields: dict[str, Any] = {
        "policy_summary": "none @8x1",
        "micro_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "peak_memory_bytes": sum(total.model_dump().values()),
        "memory_bytes": total,
        "unseen_bytes": 0,
        "places": (
            PlaceMemory(blocks="h", block=0, memory_bytes=of_block),
            PlaceMemory(module="", stage="after", memory_bytes=of_loss),
        ),
        "held": (LOGITS,) if loss else (),
    }
    return PeakSplit(**{**fields, **changes})


def floor(size: int = 8, **parts: Any) -> PeakSplit:
    predicted = {"predicted_peak_bytes": 4 * MIB, "lowest_among": "all placements", **parts}
    return split(micro_batch_size=size, policy_summary=f"block @{size}x{8 // size}", **predicted)


@pytest.mark.parametrize(
    "plain, text",
    [
        (split(blocks=97), "Activations of the blocks are the main use of memory: 97% of the peak."),
        (
            split(blocks=7, loss=90),
            "Activations of the blocks are not the main use of memory: they are 7% of the peak, head and loss 90%.",
        ),
        (
            split(blocks=20, states=(20, 20, 40)),
            "Activations of the blocks are not the main use of memory: they are 20% of the peak, states (parameters, "
            "gradients, optimizer states) 80%.",
        ),
    ],
    ids=["blocks", "loss", "states"],
)
def test_what_memory_is_mainly_used_for(plain: PeakSplit, text: str) -> None:
    assert list(main_consumer_text(plain, None)) == [text]


def test_temporary_memory_of_blocks_is_no_activation() -> None:
    plain = split(blocks=57)
    (place, loss) = plain.places
    memory = place.memory_bytes.model_copy(update={"activations": 20 * MIB, "temporary": 37 * MIB})
    places = (place.model_copy(update={"memory_bytes": memory}), loss)
    plain = plain.model_copy(update={"memory_bytes": memory, "places": places})
    assert list(main_consumer_text(plain, None)) == [
        "Activations of the blocks are not the main use of memory: they are 33% of the peak, temporary memory of the "
        "blocks 62%."
    ]


class TestRemedies:
    def test_none_where_activations_are_all(self) -> None:
        assert list(remedies_text(split(blocks=997), [floor(blocks=97)])) == []

    def test_states_are_to_be_divided_or_kept_by_a_leaner_optimizer(self) -> None:
        states, optimizer = remedies_text(split(blocks=20, states=(20, 20, 40)), [])
        assert "80.0 MiB, 80% of the plain peak" in states
        assert "Divided over 8 ranks (fully sharded data parallel) they would take about 10.0 MiB on each." in states
        assert "its states take 40.0 MiB, 2.0 times the parameters" in optimizer
        assert "(sgd with momentum) takes 20.0 MiB, sgd without momentum none" in optimizer

    def test_an_optimizer_with_little_state_is_left_alone(self) -> None:
        (states,) = remedies_text(split(blocks=20, states=(40, 40, 0)), [])
        assert states.startswith("states: ")

    def test_states_count_at_the_floor_where_they_are_little_of_the_plain_peak(self) -> None:
        states, _ = remedies_text(split(blocks=997), [floor(blocks=1)])
        assert "75% of the floor at micro-batch 8" in states

    def test_a_loss_is_to_be_computed_in_chunks(self) -> None:
        (loss,) = remedies_text(split(blocks=100, loss=800), [])
        assert "head and loss: 800.0 MiB, 89% of the peak of none @8x1, is made after the blocks" in loss
        assert "512 x 50000 float32 from aten._log_softmax, 100.0 MiB" in loss
        assert "A loss computed in 8 chunks of the tokens would hold about 100.0 MiB." in loss

    def test_a_smaller_micro_batch_is_told_by_its_floor(self) -> None:
        (text,) = remedies_text(split(blocks=997), [floor(blocks=97), floor(1, blocks=47)])
        assert text == "smaller micro-batch: the floor is 50.0 MiB at micro-batch 1 and 100.0 MiB at 8."

    def test_a_smaller_micro_batch_may_not_help(self) -> None:
        (text,) = remedies_text(split(blocks=997), [floor(blocks=97), floor(1, blocks=97)])
        assert text.startswith("smaller micro-batch: does not help,")


class TestFloor:
    def test_names_the_placement_the_peak_and_the_largest_tensors(self) -> None:
        basis, alive, tensor = floor_text([floor(loss=1)])
        assert basis == (
            "floor at micro-batch 8 x 1: no placement of this search is predicted below 4.0 MiB: block @8x1, measured "
            "4,194,304 bytes (4.0 MiB)."
        )
        assert (
            alive == "  alive then: optimizer states 2.0 MiB (50%), parameters 1.0 MiB (25%), activations 1.0 MiB (25%)"
        )
        assert tensor.split(maxsplit=2)[:2] == ["100.0", "MiB"]
        assert tensor.endswith(
            "own code after the blocks: loss: 512 x 50000 float32 from aten._log_softmax (activations)"
        )

    def test_says_how_far_the_claim_goes(self) -> None:
        uniform, _ = floor_text([floor(lowest_among="one action on all blocks")])
        assert "of placements with one action on all blocks none is predicted below 4.0 MiB" in uniform
        unknown, _ = floor_text([floor(lowest_among=None, predicted_peak_bytes=None)])
        assert "nothing was predicted, so recompute of every block is looked at" in unknown


class TestVerdict:
    PLAIN = split(blocks=97)

    @pytest.mark.parametrize(
        "cap, text",
        [
            (100, "It fits into 100.0 MiB without recompute; recompute could only make room for something larger."),
            (50, "It does not fit into 50.0 MiB; with recompute it can, down to 40.0 MiB."),
            (
                30,
                "It does not fit into 30.0 MiB, and at micro-batch 8 no placement of this search does; at micro-batch "
                "1 it can, down to 20.0 MiB.",
            ),
            (
                10,
                "It does not fit into 10.0 MiB, and no placement of this search does: the floor is 20.0 MiB. Recompute "
                "alone cannot help here.",
            ),
        ],
    )
    def test_says_what_recompute_can_do_under_the_cap(self, cap: int, text: str) -> None:
        assert verdict_text(self.PLAIN, [floor(blocks=37), floor(1, blocks=17)], cap * MIB) == text

    def test_claims_no_more_than_was_looked_at(self) -> None:
        text = verdict_text(self.PLAIN, [floor(blocks=37, lowest_among=None)], 10 * MIB)
        assert "no placement that was looked at does: the floor is 40.0 MiB" in text
