from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from runners.diagnosis.records import PeakSplit, PlaceMemory
from runners.trial import MemoryByKind, TrialSpec
from runners.worker import TrialWorker

Make = Callable[..., Any]
#: Bytes of one row of width 16 for each sample.
ROWS = 64 * 16 * 4
#: More samples than a row is wide, so that logits outweigh the gradient of the head.
NUM_SAMPLES, NUM_CLASSES = 64, 5_000
LOGITS = NUM_SAMPLES * NUM_CLASSES * 4


def total(places: tuple[PlaceMemory, ...]) -> dict[str, int]:
    return {kind: sum(getattr(p.memory_bytes, kind) for p in places) for kind in MemoryByKind.model_fields}


def place(split: PeakSplit, **where: Any) -> MemoryByKind:
    (found,) = [p for p in split.places if all(getattr(p, name) == value for name, value in where.items())]
    memory: MemoryByKind = found.memory_bytes
    return memory


def many_classes(subject: Make) -> Any:
    args = {"num_classes": NUM_CLASSES}
    return subject("diagnosed.py:ladder", args, sizes=(NUM_SAMPLES,), global_batch_size=NUM_SAMPLES)


@pytest.mark.parametrize("factory", ["ladder", "fused", "by_hand", "self_checkpointed", "counting", "one_block_twice"])
@pytest.mark.parametrize("sizes", [(8,), (2,)], ids=["whole batch", "accumulated"])
def test_places_and_kinds_add_up_to_the_peak(subject: Make, factory: str, sizes: tuple[int, ...]) -> None:
    made = subject(f"diagnosed.py:{factory}", sizes=sizes, workload={"optimizer_name": "adamw"})
    found = made.diagnose(floors=(made.every_block(sizes[0]),))
    assert found.failure is None
    for split in (found.plain, *found.floors):
        assert total(split.places) == split.memory_bytes.model_dump()
        assert sum(split.memory_bytes.model_dump().values()) == split.peak_memory_bytes


@pytest.mark.parametrize("sizes", [(8,), (2,)], ids=["whole batch", "accumulated"])
def test_the_peak_and_its_kinds_are_those_of_a_trial(subject: Make, sizes: tuple[int, ...]) -> None:
    made = subject("diagnosed.py:fused", sizes=sizes, workload={"optimizer_name": "adamw"})
    policy = made.every_block(sizes[0])
    trial = TrialWorker().run(TrialSpec(trial_number=0, policy=policy, workload=made.workload))
    (floor,) = made.diagnose(floors=(policy,)).floors
    assert floor.peak_memory_bytes == trial.peak_memory_bytes
    assert floor.memory_bytes == trial.memory_bytes


class TestPlaces:
    def test_hold_what_was_counted_by_hand(self, subject: Make) -> None:
        split = many_classes(subject).diagnose().plain
        for block in range(4):
            mlp = place(split, blocks="blocks", block=block, unit="mlp")
            # Within it two tensors of four times the width; its output is kept by what comes next.
            assert (mlp.activations, mlp.parameters) == (9 * ROWS, 4 * (2 * 16 * 64 + 64 + 16))
            assert place(split, blocks="blocks", block=block, unit="attention").activations == ROWS
        loss = place(split, module="", stage="after")
        assert loss.activations - LOGITS == pytest.approx(0, abs=64), "scalars of the loss"
        assert loss.temporary - 2 * LOGITS == pytest.approx(0, abs=64), "scalars of the loss"
        assert place(split, module="head", stage="after").parameters == 4 * 17 * NUM_CLASSES

    def test_of_a_step_without_states_hold_none(self, subject: Make) -> None:
        assert subject("diagnosed.py:ladder").diagnose().plain.memory_bytes.optimizer_states == 0

    def test_hold_states_where_their_parameters_are(self, subject: Make) -> None:
        made = subject("diagnosed.py:ladder", workload={"optimizer_name": "sgd", "optimizer_args": {"momentum": 0.9}})
        split = made.diagnose().plain
        assert all(p.memory_bytes.optimizer_states == p.memory_bytes.parameters for p in split.places)


class TestFloor:
    def test_of_a_model_with_many_classes_is_held_by_the_loss(self, subject: Make) -> None:
        made = many_classes(subject)
        (floor,) = made.diagnose(floors=(made.every_block(NUM_SAMPLES),)).floors
        largest = [(held.module, held.stage, held.shape, held.num_bytes) for held in floor.held[:3]]
        assert largest == [("", "after", (NUM_SAMPLES, NUM_CLASSES), LOGITS)] * 3
        # Alive besides: parameters, the batch, and one row per block border and for the head.
        parameters = 4 * (17 * NUM_CLASSES + 4 * (16 * 17 + 2 * 16 * 64 + 64 + 16))
        batch = ROWS + NUM_SAMPLES * 8
        by_hand = parameters + batch + 4 * ROWS + 3 * LOGITS
        assert floor.peak_memory_bytes - by_hand == pytest.approx(0, abs=64), "scalars of the loss"

    def test_names_what_no_operator_shows(self, subject: Make) -> None:
        made = subject("diagnosed.py:ladder", preserve_rng_state=True)
        (floor,) = made.diagnose(floors=(made.every_block(8),)).floors
        state = torch.get_rng_state().nbytes
        assert floor.unseen_bytes > 0
        assert floor.unseen_bytes % state == 0


def test_kept_bytes_are_what_autograd_saves(subject: Make) -> None:
    made = subject("diagnosed.py:ladder")
    torch.manual_seed(0)
    from runners.workloads.load import load_workload

    workload = load_workload(made.workload)
    model, batch = workload.build_model(), workload.make_batch(8)
    known = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *batch.values())}
    sizes: dict[int, int] = {}
    held = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        held.append(storage)
        if storage.data_ptr() not in known:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(**batch)
    assert made.diagnose().kept_bytes == sum(sizes.values()) + loss.nbytes
