from __future__ import annotations

from search_spaces.gathering import Gathering, Group
from search_spaces.memory_profile import ListProfile, MemoryProfile, Moment, StepProfile, Stretch
from search_spaces.ranked_profile import ranked_profile

STATIC = 1_000 + 4_000  # Parameters and optimizer states; inputs are nothing here.


def profile(*, accumulates: bool = False) -> MemoryProfile:
    backward = Moment("fixed", Stretch(delta_bytes=400, rise_bytes=700, gradient_bytes=1_000))
    blocks = ListProfile("blocks", (0, 1), (0, 0), (), parameter_bytes=(300, 300), gradient_bytes=(300, 200))
    step = StepProfile(
        micro_batch_size=1,
        accumulates=accumulates,
        static_bytes=STATIC + (1_000 if accumulates else 0),
        moments=(Moment("fixed", Stretch(600, 900)), backward),
        lists=(blocks,),
        update=Stretch(-1_000, 50),
    )
    return MemoryProfile(1_000, 1_000, 4_000, (step,))


def test_a_process_alone_has_the_profile_as_it_is() -> None:
    assert ranked_profile(profile(), "none", 1) == profile()


def test_ddp_keeps_buckets_of_all_gradients_beside_the_model() -> None:
    ranked = ranked_profile(profile(), "ddp", 4)
    assert ranked.steps[0].static_bytes == STATIC + 1_000
    assert ranked.steps[0].moments == profile().steps[0].moments


def test_fsdp2_holds_its_share_of_what_is_alive_before() -> None:
    ranked = ranked_profile(profile(), "fsdp2", 4)
    assert ranked.steps[0].static_bytes == STATIC // 4
    assert (ranked.parameter_bytes, ranked.gradient_bytes, ranked.optimizer_state_bytes) == (250, 250, 1_000)
    assert ranked.steps[0].update == Stretch(-250, 13)


def test_fsdp2_keeps_whole_gradients_from_micro_batch_to_micro_batch() -> None:
    assert ranked_profile(profile(accumulates=True), "fsdp2", 4).steps[0].static_bytes == STATIC // 4 + 1_000


def test_fsdp2_gathers_blocks_and_what_is_outside_of_them() -> None:
    ranked = ranked_profile(profile(), "fsdp2", 4, reshards=False, copies=False)
    assert ranked.gathering == Gathering(4, Group(400, 500), reshards=False, copies=False)
