"""The model-guided sampler against a made-up device whose every policy is known, through Optuna's own interface."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import optuna
import pytest
from optuna.storages import BaseStorage, InMemoryStorage

from runners.trial import DryRunResult, TrialResult, TrialStatus, Verdict, Verification
from search_spaces.memory_timeline import MemoryTimeline
from search_spaces.policy import BLOCK, SEGMENT, RecomputePolicy
from search_spaces.registry import make_space
from tuner.forecast import Forecast, make_forecast
from tuner.objective import Objective
from tuner.prediction.front_filling import hypervolume
from tuner.prediction.placement_features import FloatArray, Label, cells_of
from tuner.sampling.distributions import to_distributions
from tuner.sampling.policy_sampler import NoGainExpected
from tuner.sampling.policy_study import PolicyStudy, Proposal, open_policy_study
from tuner.sampling.registry import MODEL_GUIDED, Guide, make_sampler
from tuner.sampling.tried_policies import TriedPolicies

sys.path.append(str(Path(__file__).parents[1] / "prediction"))

import made_up

optuna.logging.set_verbosity(optuna.logging.WARNING)

MATCH = Verification(verdict=Verdict.MATCH, recompute_verdict=Verdict.MATCH)
#: From the policy's true time to another one: what a device may do that the model of time does not say.
Twist = Callable[["Device", RecomputePolicy, float], float]


@dataclass
class Device:
    """Times and peaks of all policies of a search over lists of blocks.

    Attributes:
        noise: Relative standard deviation of one measurement, which the device reports as its standard error.
        overhead: What its allocator takes on top of the predicted peak, relative to it.
    """

    seed: int
    lengths: tuple[int, ...] = (12,)
    cap_share: float = 0.5
    noise: float = 0.01
    overhead: float = 0.0
    twist: Twist | None = None
    times: dict[RecomputePolicy, float] = field(default_factory=dict)
    peaks: dict[RecomputePolicy, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.choices = made_up.made_up_choices(self.lengths, global_batch_size=4)
        self.space = make_space("two_action", self.choices)
        self.profile = made_up.made_up_profile(self.choices, self.seed)
        timeline = MemoryTimeline(self.profile)
        generator = np.random.default_rng(self.seed)
        self._errors = np.random.default_rng(self.seed + 1)
        forecast = self.forecast(10**12)
        features, prices = forecast.proposer.features, forecast.proposer.price_means
        true = self._true_prices(features.labels, prices * generator.uniform(0.6, 1.5, len(prices)), generator)
        spread = generator.uniform(0.0, 0.4)
        base = [1 + spread / batch.micro_batch_size + generator.normal(0, 0.02) for batch in features.batches]
        for policy in self.space.policies():
            of_policy = features.of(policy)
            index = features.batch_index(policy)
            time = base[index] * (1 + float(of_policy.shares @ true))
            self.times[policy] = time if self.twist is None else self.twist(self, policy, time)
            self.peaks[policy] = int(timeline.peak_bytes(policy) * (1 + self.overhead))
        low, high = min(self.peaks.values()), max(self.peaks.values())
        self.cap_bytes = int(low + self.cap_share * (high - low))
        self.objective = Objective(self.cap_bytes, has_reference=False)
        self.best_time = min(time for policy, time in self.times.items() if self.peaks[policy] <= self.cap_bytes)
        largest = features.batches[0]
        self.baseline = next(p for p in self.times if not p.recomputes and p.batch == largest)

    def _true_prices(self, labels: Sequence[Label], prices: FloatArray, generator: np.random.Generator) -> FloatArray:
        """The prices, but what is rebuilt together costs about what its parts cost."""
        position = {(label.list_index, label.action): index for index, label in enumerate(labels)}
        for index, label in enumerate(labels):
            if label.action == "attention+mlp":
                parts = [prices[position[label.list_index, unit]] for unit in ("attention", "mlp")]
                prices[index] = sum(parts) * generator.normal(1, 0.05)
            elif label.action == SEGMENT:
                prices[index] = prices[position[label.list_index, BLOCK]] * generator.uniform(1, 1.08)
        return prices

    def forecast(self, cap_bytes: int) -> Forecast:
        answer = DryRunResult(profile=self.profile)
        forecast = make_forecast(self.choices, answer, cap_bytes=cap_bytes, dry_run_peaks=lambda policies: ())
        assert forecast is not None
        return forecast

    def study(self, *, seed: int = 0, storage: BaseStorage | str | None = None) -> PolicyStudy:
        forecast = self.forecast(self.cap_bytes)
        tried = TriedPolicies(self.space, self.objective)
        sampler = make_sampler(MODEL_GUIDED, self.space, seed=seed, guide=Guide(forecast.proposer, tried))
        return open_policy_study(
            "study",
            space=self.space,
            sampler=sampler,
            storage=storage,
            predict=lambda policy, trials: forecast.predict(policy, tried.read(trials)),
        )

    def measure(self, proposal: Proposal) -> TrialResult:
        time = self.times[proposal.policy] * float(np.exp(self._errors.normal(0, self.noise)))
        return TrialResult(
            trial_number=proposal.trial_number,
            policy=proposal.policy,
            status=TrialStatus.COMPLETED,
            samples_per_second=1 / time,
            step_time_s=time,
            step_time_spread_s=self.noise * time,
            peak_memory_bytes=self.peaks[proposal.policy],
            verification=MATCH,
        )

    def tell(self, study: PolicyStudy, result: TrialResult) -> None:
        assert study.tell(result, self.objective.score(result))

    def run(self, study: PolicyStudy, num_trials: int) -> list[RecomputePolicy]:
        """Policies in the order they were tried, the baseline first; fewer where the sampler stops."""
        study.enqueue(self.baseline)
        tried: list[RecomputePolicy] = []
        while len(tried) < num_trials:
            try:
                proposal = study.ask()
            except NoGainExpected:
                break
            self.tell(study, self.measure(proposal))
            tried.append(proposal.policy)
        return tried

    def gap(self, tried: list[RecomputePolicy]) -> float:
        """By how much the fastest feasible policy tried is slower than the fastest there is, by true times."""
        times = [self.times[policy] for policy in tried if self.peaks[policy] <= self.cap_bytes]
        return min(times, default=float("inf")) / self.best_time - 1

    def num_trials_to(self, gap: float, tried: list[RecomputePolicy]) -> int:
        return next(number for number in range(1, len(tried) + 1) if self.gap(tried[:number]) <= gap)

    def num_over_cap(self, tried: list[RecomputePolicy]) -> int:
        return sum(self.peaks[policy] > self.cap_bytes for policy in tried[1:])

    def front_share(self, tried: list[RecomputePolicy]) -> float:
        return self._hypervolume(tried) / self._hypervolume(list(self.times))

    def _hypervolume(self, policies: list[RecomputePolicy]) -> float:
        peaks = np.array([self.peaks[policy] for policy in policies], dtype=np.float64)
        return hypervolume(peaks, np.array([1 / self.times[policy] for policy in policies]), self.cap_bytes)


SEEDS = range(5)
SHARES = (0.15, 0.4, 0.6)


def devices(**arguments: object) -> list[Device]:
    return [Device(seed, cap_share=SHARES[seed % len(SHARES)], **arguments) for seed in SEEDS]  # type: ignore[arg-type]


def test_the_optimum_is_found_in_about_ten_trials_and_the_front_in_twenty_five() -> None:
    numbers, shares = [], []
    for device in devices():
        tried = device.run(device.study(), 25)
        numbers.append(device.num_trials_to(0.01, tried))
        shares.append(device.front_share(tried))
        assert device.num_over_cap(tried) == 0
        assert len(set(tried)) == len(tried)
    assert float(np.median(numbers)) <= 10
    assert max(numbers) <= 15
    assert float(np.median(shares)) >= 0.99


def last_blocks_cost_more(device: Device, policy: RecomputePolicy, time: float) -> float:
    regions = [region for placement in policy.placement for region in placement.regions]
    return time * (1 + 0.002 * sum(region.first for region in regions))


def one_slow_micro_batch(device: Device, policy: RecomputePolicy, time: float) -> float:
    return time * 1.4 if policy.batch.micro_batch_size == 2 else time


def both_units_cost_more_than_the_sum(device: Device, policy: RecomputePolicy, time: float) -> float:
    blocks = [r.num_blocks for p in policy.placement for r in p.regions if r.action == "attention+mlp"]
    return time * (1 + 0.15 * sum(blocks) / 12)


@pytest.mark.parametrize(
    ("twist", "noise"),
    [
        pytest.param(last_blocks_cost_more, 0.01, marks=pytest.mark.slow),
        (one_slow_micro_batch, 0.01),
        pytest.param(both_units_cost_more_than_the_sum, 0.01, marks=pytest.mark.slow),
        (None, 0.05),
    ],
)
def test_it_ends_near_the_optimum_where_the_model_of_time_is_wrong(twist: Twist | None, noise: float) -> None:
    for device in devices(twist=twist, noise=noise):
        tried = device.run(device.study(), 25)
        assert device.gap(tried) <= 0.02
        assert device.num_over_cap(tried) == 0


def test_several_lists_of_blocks_are_searched_together() -> None:
    device = Device(3, lengths=(4, 3), cap_share=0.4)
    tried = device.run(device.study(), 20)
    assert device.gap(tried) <= 0.01
    assert device.num_over_cap(tried) == 0


def test_an_allocator_that_takes_more_than_predicted_costs_no_trial_over_the_cap() -> None:
    device = Device(2, overhead=0.08, cap_share=0.3)
    tried = device.run(device.study(), 20)
    assert device.num_over_cap(tried) == 0
    assert device.gap(tried) <= 0.02


def test_it_stops_with_a_reason_once_nothing_is_to_be_gained() -> None:
    device = Device(1, noise=0.002)
    study = device.study()
    tried = device.run(study, 60)
    assert len(tried) < 40
    with pytest.raises(NoGainExpected, match=r"would save 0\.\d% of a step, and the measured front covers 99\.\d%"):
        study.ask()


def test_the_same_seed_proposes_the_same_and_a_resumed_study_goes_on_alike() -> None:
    whole = Device(4).run(Device(4).study(seed=5), 12)
    device, storage = Device(4), InMemoryStorage()
    before = device.run(device.study(seed=5, storage=storage), 5)
    resumed = device.study(seed=5, storage=storage)
    after = []
    for _ in range(7):
        proposal = resumed.ask()
        device.tell(resumed, device.measure(proposal))
        after.append(proposal.policy)
    assert [*before, *after] == whole


def test_workers_in_parallel_get_different_policies_and_may_answer_in_any_order() -> None:
    device = Device(0)
    study = device.study()
    study.enqueue(device.baseline)
    first = study.ask()
    device.tell(study, device.measure(first))
    in_flight = [study.ask() for _ in range(4)]
    tried = [first.policy, *(proposal.policy for proposal in in_flight)]
    for number in range(16):
        late = in_flight.pop(number % 4)
        device.tell(study, device.measure(late))
        try:
            in_flight.append(study.ask())
        except NoGainExpected:
            break
        tried.append(in_flight[-1].policy)
    assert len(set(tried)) == len(tried)
    assert device.num_over_cap(tried) == 0
    assert device.gap(tried) <= 0.02


def failed(proposal: Proposal, status: TrialStatus) -> TrialResult:
    return TrialResult(trial_number=proposal.trial_number, policy=proposal.policy, status=status, reason="it fell over")


def actions_of(policy: RecomputePolicy) -> set[str]:
    """Of what is recomputed at once: a segment of a single block is a block."""
    regions = (region for placement in policy.placement for region in placement.regions)
    return {cell.action for region in regions for cell in cells_of(region)}


def test_an_action_that_fails_is_not_proposed_again_and_the_others_are() -> None:
    device = Device(3, cap_share=0.2)
    study = device.study()
    study.enqueue(device.baseline)
    num_failed, tried = 0, []
    for _ in range(20):
        try:
            proposal = study.ask()
        except NoGainExpected:
            break
        tried.append(proposal.policy)
        if "block" in actions_of(proposal.policy):
            num_failed += 1
            device.tell(study, failed(proposal, TrialStatus.FAILED))
        else:
            device.tell(study, device.measure(proposal))
    assert 1 <= num_failed <= 3
    without_block = [
        time
        for policy, time in device.times.items()
        if "block" not in actions_of(policy) and device.peaks[policy] <= device.cap_bytes
    ]
    measured = [device.times[p] for p in tried if "block" not in actions_of(p) and device.peaks[p] <= device.cap_bytes]
    assert min(measured) <= 1.03 * min(without_block)


def test_a_micro_batch_that_changes_the_model_is_not_proposed_again() -> None:
    device = Device(0, cap_share=0.4)
    study = device.study()
    study.enqueue(device.baseline)
    wrong = MATCH.model_copy(update={"verdict": Verdict.MISMATCH, "split_verdict": Verdict.MISMATCH})
    tried = []
    for _ in range(12):
        proposal = study.ask()
        tried.append(proposal.policy)
        result = device.measure(proposal)
        right = MATCH.model_copy(update={"split_verdict": Verdict.MATCH})
        is_wrong = proposal.policy.batch.micro_batch_size == 2
        result = result.model_copy(update={"verification": wrong if is_wrong else right})
        device.tell(study, result)
    assert sum(policy.batch.micro_batch_size == 2 for policy in tried) <= 1


@pytest.mark.parametrize("whole_fits", [True, False], ids=["the whole batch fits", "it does not"])
def test_one_wrong_division_is_enough_where_the_whole_batch_fits(whole_fits: bool) -> None:
    device = Device(0)
    whole = [peak for policy, peak in device.peaks.items() if policy.batch.gradient_accumulation_steps == 1]
    device.cap_bytes = (min(whole) + max(whole)) // 2 if whole_fits else min(whole) - 1
    device.objective = Objective(device.cap_bytes, has_reference=False)
    study = device.study()
    study.enqueue(device.baseline)
    wrong = MATCH.model_copy(update={"verdict": Verdict.MISMATCH, "split_verdict": Verdict.MISMATCH})
    divided = []
    for _ in range(8):
        try:
            proposal = study.ask()
        except NoGainExpected:
            break
        result = device.measure(proposal)
        if proposal.policy.batch.gradient_accumulation_steps > 1:
            divided.append(proposal.policy.batch.micro_batch_size)
            result = result.model_copy(update={"verification": wrong})
        device.tell(study, result)
    assert len(divided) == (1 if whole_fits else 2)
    if not whole_fits:
        with pytest.raises(NoGainExpected, match="micro-batch size that only went wrong is predicted to fit"):
            study.ask()


@pytest.mark.parametrize("seed", range(5))
def test_plain_training_is_tried_first_at_the_largest_size_that_fits(seed: int) -> None:
    device = Device(seed=seed)
    plain = {p.batch.micro_batch_size: p for p in device.times if not p.recomputes}
    device.cap_bytes = int(1.1 * device.peaks[plain[2]])
    device.objective = Objective(device.cap_bytes, has_reference=False)
    assert device.peaks[device.baseline] > device.cap_bytes > device.peaks[plain[1]]
    assert device.run(device.study(), 2)[1] == plain[2]


@pytest.mark.parametrize("room", [1.05, 1.5], ids=["hardly anything fits", "much fits"])
def test_a_search_that_has_an_answer_finds_it_however_far_off_predicted_peaks_are(room: float) -> None:
    """As of a kernel that keeps far more than its tensors show, unless it is recomputed."""
    device = Device(0)
    features = device.forecast(10**12).proposer.features
    for policy, peak in device.peaks.items():
        device.peaks[policy] = int(peak * (3 - 2 * features.of(policy).shares.sum()))
    device.cap_bytes = int(room * min(device.peaks.values()))
    device.objective = Objective(device.cap_bytes, has_reference=False)
    study = device.study()
    study.enqueue(device.baseline)
    peaks = []
    for _ in range(12):
        try:
            proposal = study.ask()
        except NoGainExpected:
            break
        peaks.append(device.peaks[proposal.policy])
        device.tell(study, device.measure(proposal))
    assert peaks[0] > 2 * device.cap_bytes
    assert min(peaks) <= device.cap_bytes


def test_a_baseline_that_the_device_refuses_teaches_and_does_not_stop_it() -> None:
    device = Device(5, cap_share=0.3)
    study = device.study()
    study.enqueue(device.baseline)
    device.tell(study, failed(study.ask(), TrialStatus.OUT_OF_MEMORY))
    tried = [device.baseline]
    for _ in range(14):
        proposal = study.ask()
        device.tell(study, device.measure(proposal))
        tried.append(proposal.policy)
    assert device.num_over_cap(tried) == 0
    assert device.gap(tried) <= 0.02


def test_a_cap_that_nothing_fits_ends_after_the_baseline() -> None:
    device = Device(0)
    device.cap_bytes = min(device.peaks.values()) // 2
    device.objective = Objective(device.cap_bytes, has_reference=False)
    study = device.study()
    assert device.run(study, 10) == [device.baseline]
    with pytest.raises(NoGainExpected, match="no untried placement is predicted to fit under the cap"):
        study.ask()


def test_predictions_are_handed_out_with_each_proposal() -> None:
    device = Device(0)
    study = device.study()
    study.enqueue(device.baseline)
    first = study.ask()
    assert first.prediction is not None
    assert first.prediction.peak_memory_bytes == device.peaks[first.policy]
    assert first.prediction.time is None
    device.tell(study, device.measure(first))
    second = study.ask()
    assert second.prediction is not None
    assert second.prediction.time is not None
    assert second.prediction.time_deviation is not None
    assert second.prediction.time_deviation > 0


def test_plain_optuna_can_drive_it() -> None:
    device = Device(0)
    forecast = device.forecast(device.cap_bytes)
    guide = Guide(forecast.proposer, TriedPolicies(device.space, device.objective))
    study = optuna.create_study(
        directions=("maximize", "minimize"), sampler=make_sampler(MODEL_GUIDED, device.space, seed=0, guide=guide)
    )
    policies = set()
    for _ in range(3):
        trial = study.ask(to_distributions(device.space))
        policies.add(device.space.decode(trial.params))
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
    assert len(policies) >= 1


def test_without_a_dry_run_it_is_refused() -> None:
    with pytest.raises(ValueError, match="model_guided needs predictions, and this model has no dry run"):
        make_sampler(MODEL_GUIDED, Device(0).space, seed=0)
