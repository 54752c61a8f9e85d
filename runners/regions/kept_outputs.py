"""What a region keeps while all else in it is rebuilt: the outputs of chosen operators (selective checkpointing)."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from runners.regions.rng_state import RngState
from search_spaces.kept_operators import KeptOperator
from search_spaces.policy import PolicyError

ContextPair = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]


class KeptOutputs:
    """The operators whose outputs a region keeps.

    Args:
        region_name: For messages.
        keep: As in a policy.

    Raises:
        PolicyError: torch has no such operator.
    """

    def __init__(self, region_name: str, keep: Sequence[str], *, preserve_rng_state: bool) -> None:
        self.region_name = region_name
        self._by_operator = {_operator(rule.name, region_name): rule for rule in map(KeptOperator.parse, keep)}
        self._replays_rng = preserve_rng_state and any(map(is_random, self._by_operator))

    def contexts(self) -> ContextPair:
        """What one forward of the region runs under, and what its rebuild does: the ``context_fn`` of a checkpoint."""
        pass_ = _Pass(self._by_operator)
        pair: ContextPair = create_selective_checkpoint_contexts(pass_.decide)  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        if torch.compiler.is_compiling():
            return pair
        forward, rebuild = pair
        checked = self._checked(pass_)
        if not self._replays_rng:
            return _Stacked(checked, forward), rebuild
        states: list[RngState] = []
        return _Stacked(checked, forward, _RngLog(states)), _Stacked(rebuild, _RngReplay(states))

    @contextmanager
    def _checked(self, forward: _Pass) -> Iterator[None]:
        """Refuses rules that match nothing: without what they keep, the region would be rebuilt whole, unnoticed."""
        yield
        idle = [str(rule) for operator, rule in self._by_operator.items() if not forward.num_kept[operator]]
        if not idle:
            return
        ran = ", ".join(sorted({str(operator) for operator in forward.num_calls if not is_view(operator)}))
        what = f"names {', '.join(idle)}, which it did not run; it runs {ran}"
        if len(idle) == len(self._by_operator):
            raise PolicyError(
                f"keep of {self.region_name} {what}; tune on this device, where operators may have other names, or "
                "name one of those"
            )
        # The same words for every block of a list, so that they are shown once.
        blocks = self.region_name.rpartition(".")[0] or self.region_name
        warnings.warn(f"keep of a block of {blocks} {what}; the rest is kept", stacklevel=2)


class _Pass:
    """Counts the operators of one forward, and of the rebuild where torch asks there as well (before 2.10)."""

    def __init__(self, rules: dict[OpOverload[..., Any], KeptOperator]) -> None:
        self._rules = rules
        self.num_calls: Counter[Any] = Counter()
        self.num_kept: Counter[Any] = Counter()
        self._num_rebuilt: Counter[Any] = Counter()

    def decide(self, context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        counter = self._num_rebuilt if context.is_recompute else self.num_calls
        call = counter[operator]
        counter[operator] += 1
        rule = self._rules.get(operator)
        if rule is None or not rule.keeps(call):
            return CheckpointPolicy.PREFER_RECOMPUTE
        self.num_kept[operator] += 1
        return CheckpointPolicy.MUST_SAVE


class _Stacked(AbstractContextManager[None]):
    """Contexts as one, which may be entered again after it was left; the last one sees each operator first."""

    def __init__(self, *contexts: AbstractContextManager[Any]) -> None:
        self._contexts = contexts
        self._stack = ExitStack()

    def __enter__(self) -> None:
        for context in self._contexts:
            self._stack.enter_context(context)

    def __exit__(self, *raised: Any) -> None:
        self._stack.__exit__(*raised)


class _RngLog(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    """Writes down what the generators are before each operator that draws from them."""

    def __init__(self, states: list[RngState]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        self._states = states

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_random(func):
            self._states.append(RngState(args, kwargs))
        return func(*args, **(kwargs or {}))


class _RngReplay(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    """Sets them to it again: an operator whose output was kept draws nothing in the rebuild, and those after it would
    draw what was its."""

    def __init__(self, states: list[RngState]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        self._states = states
        self._num_seen = 0

    def __enter__(self) -> Any:
        self._num_seen = 0
        return super().__enter__()  # type: ignore[no-untyped-call]  # torch leaves it unannotated

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_random(func):
            self._states[self._num_seen].restore()
            self._num_seen += 1
        return func(*args, **(kwargs or {}))


def is_random(operator: Any) -> bool:
    """Whether an operator draws from a random generator."""
    return torch.Tag.nondeterministic_seeded in getattr(operator, "tags", ())


def is_view(operator: Any) -> bool:
    """Whether an operator only looks at its input in another way."""
    return bool(getattr(operator, "is_view", False))


def operator_named(name: str) -> OpOverload[..., Any] | None:
    """The operator overload ``namespace.operator.overload``; None where this torch has none of that name."""
    namespace, packet, overload = name.split(".")
    try:
        operator: OpOverload[..., Any] = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    except AttributeError:
        return None
    return operator


def _operator(name: str, region_name: str) -> OpOverload[..., Any]:
    operator = operator_named(name)
    if operator is None:
        raise PolicyError(
            f"keep of {region_name} names {name!r}, an operator that this torch does not have; import what brings it "
            "before the policy is applied, or name another one"
        )
    return operator
