from __future__ import annotations

import pytest

from search_spaces.memory_profile import ListProfile, MemoryProfile, Moment, StepProfile, Stretch
from search_spaces.ranked_profile import ranked_profile

STATIC = 1_000 + 4_000  # Parameters and optimizer states; inputs are nothing here.


def profile(*, accumulates: bool = False) -> MemoryProfile:
    backward = Moment("fixed", Stretch(delta_bytes=400, rise_bytes=700, gradient_bytes=1_000))
    step = StepProfile(
        micro_batch_size=1,
        accumulates=accumulates,
        static_bytes=STATIC + (1_000 if accumulates else 0),
        moments=(Moment("fixed", Stretch(600, 900)), backward),
        lists=(ListProfile("blocks", (0, 1), (0, 0), (), parameter_bytes=(300, 300)),),
        update=Stretch(-1_000, 50),
    )
    return MemoryProfile(1_000, 1_000, 4_000, (step,))


def test_a_process_alone_has_the_profile_as_it_is() -> None:
    assert ranked_profile(profile(), "none", 1) == profile()


def test_ddp_keeps_buckets_of_all_gradients_beside_the_model() -> None:
    ranked = ranked_profile(profile(), "ddp", 4)
    assert ranked.steps[0].static_bytes == STATIC + 1_000
    assert ranked.steps[0].moments == profile().steps[0].moments


@pytest.mark.parametrize(
    ("accumulates", "reshards", "whole"),
    # Outside of blocks are 400 bytes. Four blocks are held at once, or five where each micro-batch reduces, but never
    # more than all blocks twice; whole ones are all there, and a buffer for one more.
    [(True, True, 400 + 1_200), (False, True, 400 + 1_200), (True, False, 1_000 + 300), (False, False, 1_000 + 300)],
)
def test_fsdp2_holds_its_share_and_what_is_whole_at_once(accumulates: bool, reshards: bool, whole: int) -> None:
    ranked = ranked_profile(profile(accumulates=accumulates), "fsdp2", 4, reshards=reshards)
    # Gradients of whole parameters stay from micro-batch to micro-batch.
    assert ranked.steps[0].static_bytes == STATIC // 4 + whole + (1_000 if accumulates else 0)
    assert (ranked.parameter_bytes, ranked.gradient_bytes, ranked.optimizer_state_bytes) == (250, 250, 1_000)


def test_fsdp2_keeps_the_share_of_gradients_that_each_micro_batch_reduces() -> None:
    stretch = ranked_profile(profile(), "fsdp2", 4).steps[0].moments[1].stretch
    assert stretch == Stretch(delta_bytes=400 - 1_000 + 250, rise_bytes=700, gradient_bytes=250)
