"""Made-up devices, seeded: what each policy of a made-up model takes there, known without measuring it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from search_problem import Actual, Best
from synthetic_model import MIB, synthetic_choices, synthetic_profile

from runners.replay_runner import Outcome
from runners.trial import DryRunResult, TrialResult, TrialSpec, TrialStatus
from search_spaces.ablation import plain_policies
from search_spaces.memory_timeline import MemoryTimeline
from search_spaces.policy import BLOCK, SEGMENT, RecomputePolicy
from tuner.forecast import Forecast, flops_prices, make_forecast
from tuner.objective import Objective
from tuner.prediction.front_filling import hypervolume
from tuner.prediction.placement_features import FloatArray, IntArray, PlacementFeatures
from tuner.prediction.solver import PlacementSolver
from tuner.prediction.time_model import TimeWeights

#: Where the cap lies between the least peak there is and the baseline's; devices take them in turn.
_CAP_SHARES = (0.15, 0.4, 0.6, 0.8)


@dataclass(frozen=True)
class DeviceKind:
    """A family of devices; each seed is another one of it, with another model.

    Attributes:
        lengths: Blocks of each list of the model.
        noise: Standard error of a trial's time, relative to it.
        has_allocator: Peaks are what a caching allocator reserves: 1 to 2.5 % more than the step needs, not
            the same for all policies, in units of 2 MiB; and the cap is enforced. Else they are what was predicted.
        growth: How much dearer recompute gets along a list, in powers of e from its middle to its last block.
        slow_batch: What a step takes at one micro-batch size, over what it should.
        overhead: What surrounds the kernels in a step of single samples, over the kernels' time; it halves with twice
            the size. Recompute has more of it than the step has, by half.
        slow_pair: What recomputing attention and MLP each on its own costs, over what the two cost.
        inside_modules: Actions below the module are a choice as well; those without FLOPs take up to 4 % of a step.
        roughness: Standard deviation of policies around any sum of costs, relative to their time.
    """

    name: str
    lengths: tuple[int, ...]
    global_batch_size: int = 8
    noise: float = 0.01
    has_allocator: bool = False
    growth: float = 0.0
    slow_batch: float = 1.0
    overhead: float = 0.0
    slow_pair: float = 1.0
    inside_modules: bool = False
    roughness: float = 0.003


#: In the order of the report. Each of the harder ones breaks one assumption of the time model.
DEVICE_KINDS = (
    DeviceKind("12 blocks", (12,)),
    DeviceKind("12 blocks, 5 % noise", (12,), noise=0.05),
    DeviceKind("12 blocks, later ones dearer", (12,), growth=0.8),
    DeviceKind("12 blocks, a slow micro-batch", (12,), slow_batch=1.4),
    DeviceKind("12 blocks, small kernels", (12,), overhead=2.0),
    DeviceKind("12 blocks, a slow action", (12,), slow_pair=1.6),
    DeviceKind("12 blocks, inside modules", (12,), inside_modules=True),
    DeviceKind("48 blocks, allocator", (48,), has_allocator=True),
    DeviceKind("126 blocks, allocator", (126,), global_batch_size=16, has_allocator=True),
    DeviceKind("4 + 6 blocks, allocator", (4, 6), global_batch_size=4, has_allocator=True),
    # Too many policies to look at each: costs that add up let the solver find the truth.
    DeviceKind("12 + 12 blocks", (12, 12), roughness=0.0),
)


class SyntheticDevice:
    """A search problem whose truth is a formula; its trials measure that with noise."""

    def __init__(self, kind: DeviceKind, seed: int) -> None:
        """Draws the device.

        Args:
            seed: Equal seeds draw equal devices.
        """
        generator = np.random.default_rng([seed, len(kind.lengths), sum(kind.lengths)])
        self.name = kind.name
        self.kind = kind
        self.choices = synthetic_choices(kind.lengths, kind.global_batch_size, inside_modules=kind.inside_modules)
        self.enforces_cap = kind.has_allocator
        self._salt = np.uint64(generator.integers(2**63))
        self._features = PlacementFeatures(self.choices)
        self._profile = synthetic_profile(self.choices, generator)
        self._timeline = MemoryTimeline(self._profile)
        self._solver = PlacementSolver(self.choices, self._features, self._timeline)
        self._weights = self._draw_weights(generator)
        num_batches = len(self._features.batches)
        self._overhead = generator.uniform(0.01, 0.02, num_batches) if kind.has_allocator else np.zeros(num_batches)
        everything = self._everything()
        self._cap_share = _CAP_SHARES[seed % len(_CAP_SHARES)]
        cap_bytes = self._cap_bytes(everything.peaks_bytes)
        self.objective = Objective(cap_bytes, proof_required=False, has_reference=False)
        within = everything.peaks_bytes <= cap_bytes
        self.best = Best(
            float(everything.times[within].min()),
            hypervolume(everything.peaks_bytes, 1 / everything.times, cap_bytes),
        )

    @cached_property
    def _forecast(self) -> Forecast:
        forecast = make_forecast(
            self.choices,
            DryRunResult(profile=self._profile),
            cap_bytes=self.objective.memory_cap_bytes,
            dry_run_peaks=lambda _: (),
        )
        assert forecast is not None, "there is a profile"
        return forecast

    def forecast(self) -> Forecast:
        return self._forecast

    def outcome(self, seed: int) -> Outcome:
        def measure(spec: TrialSpec) -> TrialResult:
            generator = np.random.default_rng([seed, spec.trial_number])
            actual = self.actual(spec.policy)
            true_s = actual.time * self.kind.global_batch_size
            step_time_s = true_s * float(np.exp(self.kind.noise * generator.standard_normal()))
            # A standard error is an estimate itself, from a few steps.
            spread_s = self.kind.noise * step_time_s * float(np.exp(0.25 * generator.standard_normal()))
            return TrialResult(
                trial_number=spec.trial_number,
                policy=spec.policy,
                status=TrialStatus.COMPLETED,
                samples_per_second=spec.policy.batch.global_batch_size / step_time_s,
                step_time_s=step_time_s,
                step_time_spread_s=spread_s,
                peak_memory_bytes=int(actual.peak_bytes),
            )

        return measure

    def actual(self, policy: RecomputePolicy) -> Actual:
        of_policy = self._features.of(policy)
        batch_index = self._features.batch_index(policy)
        predicted = np.array([self._timeline.peak_bytes(policy)], dtype=np.int64)
        times = self._times(batch_index, of_policy.shares[None, :], of_policy.tilts[None, :], predicted)
        return Actual(float(times[0]), float(self._peaks(batch_index, predicted)[0]))

    def _everything(self) -> _Points:
        """Time and peak of every policy, or of all that can be on the front where there are too many."""
        if self._is_sum:
            batches = range(len(self._features.batches))
            fronts = [(index, self._solver.front(index, self._weights)) for index in batches]
            return _Points(
                np.concatenate([front.times for _, front in fronts]) / self.kind.global_batch_size,
                np.concatenate([self._peaks(index, front.peaks_bytes) for index, front in fronts]),
            )
        candidates = self._solver.candidates([self._weights], np.inf)
        times, peaks = np.empty(len(candidates)), np.empty(len(candidates))
        for index in range(len(self._features.batches)):
            rows = candidates.batch_indices == index
            predicted = candidates.peaks_bytes[rows].astype(np.int64)
            shares, tilts = candidates.features.shares[rows], candidates.features.tilts[rows]
            times[rows] = self._times(index, shares, tilts, predicted)
            peaks[rows] = self._peaks(index, predicted)
        return _Points(times, peaks)

    @property
    def _is_sum(self) -> bool:
        """Costs add up and larger predicted peaks are larger peaks, so that the solver's front is the front."""
        return not (self.kind.growth or self.kind.roughness or self.kind.has_allocator)

    def _cap_bytes(self, peaks_bytes: FloatArray) -> int:
        least, plain = float(peaks_bytes.min()), self.actual(plain_policies(self.choices)[0]).peak_bytes
        return int(least + self._cap_share * (plain - least))

    def _times(self, batch_index: int, shares: FloatArray, tilts: FloatArray, predicted: IntArray) -> FloatArray:
        prices = self._weights.prices[batch_index]
        if self.kind.growth:
            costs = _dearer_along(shares, tilts, self.kind.growth) @ prices
        else:
            costs = shares @ prices + tilts @ self._weights.tilts[batch_index]
        strays = self.kind.roughness * _standard_normal(predicted, self._salt)
        times_s: FloatArray = (self._weights.base[batch_index] + costs) * np.exp(strays)
        return times_s / self.kind.global_batch_size

    def _peaks(self, batch_index: int, predicted: IntArray) -> FloatArray:
        if not self.kind.has_allocator:
            return predicted.astype(np.float64)
        overhead = self._overhead[batch_index] + 0.005 * _uniform(predicted, self._salt)
        peaks: FloatArray = np.ceil(predicted * (1 + overhead) / (2 * MIB)) * (2 * MIB)
        return peaks

    def _draw_weights(self, generator: np.random.Generator) -> TimeWeights:
        labels, batches = self._features.labels, self._features.batches
        prices = flops_prices(self.choices, self._features, self._timeline) * generator.uniform(0.6, 1.5, len(labels))
        if self.kind.inside_modules:
            # Element-wise work and the dispatch of kept operators: dear or not, no count of FLOPs tells.
            prices += generator.uniform(0.0, 0.04, len(labels))
        position = {(label.list_index, label.action): index for index, label in enumerate(labels)}
        for index, label in enumerate(labels):
            if label.action == "attention+mlp":
                parts = [prices[position[label.list_index, unit]] for unit in ("attention", "mlp")]
                prices[index] = sum(parts) * generator.normal(1, 0.05) * self.kind.slow_pair
            elif label.action == SEGMENT:
                prices[index] = prices[position[label.list_index, BLOCK]] * generator.uniform(1, 1.08)
        sizes = np.array([batch.micro_batch_size for batch in batches])
        # The larger the matrices, the nearer to its peak a device gets; the caches of a CPU may want the opposite.
        base = 1 + generator.uniform(0.2, 1.0) * (1 / sizes - 1 / sizes.max())
        base *= np.exp(generator.normal(0, 0.02, len(sizes)))
        if generator.random() < 0.15 and not self.kind.has_allocator:
            base = base[::-1].copy()
        base[generator.integers(len(sizes))] *= self.kind.slow_batch
        surroundings = self.kind.overhead / sizes
        base_of_prices = base + 1.5 * surroundings
        base = base + surroundings
        by_batch = base_of_prices[:, None] * prices * (1 + generator.normal(0, 0.06, (len(sizes), len(labels))))
        return TimeWeights(base, by_batch, by_batch * generator.normal(0, 0.05, len(labels)), 0.0)


@dataclass(frozen=True)
class _Points:
    times: FloatArray
    peaks_bytes: FloatArray


def _dearer_along(shares: FloatArray, tilts: FloatArray, growth: float) -> FloatArray:
    """Shares of blocks with each block weighted by ``exp(growth * position)``, over the mean weight.

    A label's blocks are one run: from its share and its tilt follow where that begins and ends, from -1 to 1.
    """
    middle = np.divide(tilts, shares, out=np.zeros_like(shares), where=shares > 0)
    weighted: FloatArray = (np.exp(growth * (middle + shares)) - np.exp(growth * (middle - shares))) / (
        2 * np.sinh(growth)
    )
    return weighted


def _uniform(keys: IntArray, salt: np.uint64) -> FloatArray:
    """Numbers from 0 to 1 that look random and are the same for the same key (splitmix64)."""
    mixed = keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + salt
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    numbers: FloatArray = ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) / 2**53
    return numbers


def _standard_normal(keys: IntArray, salt: np.uint64) -> FloatArray:
    """As `_uniform`, normally distributed (Box and Muller)."""
    first = np.maximum(_uniform(keys, salt ^ np.uint64(1)), 1e-12)
    second = _uniform(keys, salt ^ np.uint64(2))
    numbers: FloatArray = np.sqrt(-2 * np.log(first)) * np.cos(2 * np.pi * second)
    return numbers
