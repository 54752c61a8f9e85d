"""How a model behaves, in sentences that end with what it means for recompute."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from runners.diagnosis.records import AttentionUse, ModelHabits

_FALLS_BACK = (
    "torch's attention falls back to separate operators here (dropout on the weights, a mask, or a type that the fused "
    "kernel does not take)"
)
_WHY_NOT_FUSED = {
    "softmax": "the model multiplies and normalizes by itself",
    "multi_head_attention_forward (need_weights)": (
        "nn.MultiheadAttention is asked for its weights, which need_weights=False in its call would save"
    ),
}
#: Names that are listed of many.
_MOST_NAMES = 3


def habits_text(habits: ModelHabits) -> Iterator[str]:
    """One sentence or two for each thing found, and for what was not found."""
    for use in habits.attention:
        yield _attention(use)
    if not habits.attention:
        yield "attention: none found."
    yield from _own_recompute(habits)
    if not habits.own_checkpoints:
        yield "recompute by the model itself: none."
    yield from _randomness(habits)
    if habits.changed_buffers:
        yield (
            f"buffers changed in forward: {_names(habits.changed_buffers)}. Recompute runs a block's forward twice. "
            "Statistics of torch's normalization layers are kept from advancing twice; of other buffers the proof "
            "tells: a placement that changes them twice is a MISMATCH."
        )
    else:
        yield "buffers changed in forward: none."


def _own_recompute(habits: ModelHabits) -> Iterator[str]:
    alike: defaultdict[tuple[str, bool | None], list[str]] = defaultdict(list)
    for own in habits.own_checkpoints:
        alike[own.function, own.use_reentrant].append(own.module or "its own code")
    for (function, use_reentrant), modules in alike.items():
        how = "" if use_reentrant is None else f" with use_reentrant={use_reentrant}"
        yield (
            f"recompute by the model itself: {_names(modules)}, by {function}{how}. It stays as it is, and what is "
            "shown here is the model with it. Switch it off in the model to let the search place all of it."
        )


def _attention(use: AttentionUse) -> str:
    where = f"attention: {use.kernel}, {use.num_calls} call{'s' if use.num_calls > 1 else ''} ({_names(use.modules)})."
    if use.is_fused:
        return (
            f"{where} A fused kernel: it keeps no attention weights and already recomputes its inner part in backward, "
            "so recompute of attention saves less than textbooks say, and runs that part once more."
        )
    what = _WHY_NOT_FUSED.get(use.kernel, _FALLS_BACK)
    return (
        f"{where} No fused kernel: {what}, so the weights of all pairs of tokens are kept for backward. Recompute of "
        "attention drops them; a fused kernel would never keep them."
    )


def _randomness(habits: ModelHabits) -> Iterator[str]:
    for each in habits.dropout:
        yield f"dropout: p = {each.p:g} in {_names(each.modules)}."
    if not habits.random_streams:
        yield "random numbers in forward: none, so preserve_rng_state changes nothing."
        return
    operators = ", ".join(f"{each.operator} ({each.num_calls})" for each in habits.random_operators)
    drawn = f" by {operators}" if operators else ""
    yield (
        f"random numbers in forward: drawn from {', '.join(habits.random_streams)}{drawn}. Recompute must draw the "
        "same again: leave preserve_rng_state on."
    )
    host = [name for name in habits.random_streams if not name.startswith("torch")]
    if host:
        names = " and ".join(host)
        yield f"{names}: recompute does not restore this stream, so what draws from it cannot be recomputed."


def _names(names: Sequence[str]) -> str:
    if not names:
        return "the model's own code"
    if len(names) <= _MOST_NAMES:
        return ", ".join(names)
    return f"{len(names)} places: {', '.join(names[: _MOST_NAMES - 1])}, .. {names[-1]}"
