"""Turns what a model raised into one line for the table and the long form for the log."""

from __future__ import annotations

import re
import sysconfig
import traceback
from pathlib import Path
from types import TracebackType

from torch import nn
from torch.utils.checkpoint import CheckpointError

_OWN_ROOT = Path(__file__).resolve().parent
_LIBRARY_ROOTS = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
#: Longer messages are cut; the place that follows them is not.
_MAX_MESSAGE_LENGTH = 300


def explain_error(error: BaseException, model: nn.Module | None, last_recomputed_region: str | None) -> tuple[str, str]:
    """One line that says what went wrong and where, and the whole traceback.

    Args:
        model: The model that was training; names the block that the error came from.
        last_recomputed_region: The region whose rebuild was last begun; a rebuild that went wrong is that one's.
    """
    detail = "".join(traceback.format_exception(error))
    if isinstance(error, CheckpointError):
        return _explain_rebuild(str(error), last_recomputed_region), detail
    message = " ".join(str(error).split()) or "no message"
    reason = _shortened(f"{type(error).__name__}: {message}")
    block = _block_of(error.__traceback__, model)
    if block is not None:
        reason += f"; in {block}"
    line = _last_user_line(error.__traceback__)
    if line is not None:
        reason += f"; at {line}"
    return reason, detail


def _explain_rebuild(message: str, region: str | None) -> str:
    """Words for the ways in which a region's second run can differ from its first (torch has one error for all)."""
    where = region or "a recompute region"
    if "already unpacked once" in message or "already been unpacked" in message:
        return (
            f"{where} holds an operation that reads its saved tensors more than once in backward, which recompute "
            "cannot serve; place recompute outside of it"
        )
    saved, rebuilt = _shapes(message, "saved metadata"), _shapes(message, "recomputed metadata")
    if any(_has_grown(a, b) for a, b in zip(saved, rebuilt, strict=False)):
        return (
            f"{where} did not repeat itself: its tensors were larger the second time, so it kept state between the two "
            "runs; if it keeps a cache (use_cache, past_key_values), switch that off for training"
        )
    if saved and saved == rebuilt:
        return (
            f"{where} did not repeat itself: types or devices changed between forward and recompute "
            f"(first {_type(message, 'saved metadata')}, then {_type(message, 'recomputed metadata')})"
        )
    if saved:
        return (
            f"{where} did not repeat itself: shapes changed between forward and recompute "
            f"(first {_text(saved)}, then {_text(rebuilt)}; token counts changed, or other random decisions were taken)"
        )
    return (
        f"{where} did not repeat itself: it saved another number of tensors in recompute than in forward "
        "(it took another path the second time, say because a cache was filled by then: if it keeps one (use_cache, "
        "past_key_values), switch that off for training)"
    )


def _shapes(message: str, label: str) -> list[tuple[int, ...]]:
    found = re.findall(rf"{label}: \{{'shape': torch\.Size\(\[([0-9, ]*)\]\)", message)
    return [tuple(int(size) for size in text.split(",") if size.strip()) for text in found]


def _type(message: str, label: str) -> str:
    """Type and device of the first tensor that torch names, such as ``float32 on cpu``."""
    found = re.search(rf"{label}: .*?'dtype': torch\.(\w+), 'device': device\(type='(\w+)'", message)
    return "unknown" if found is None else f"{found[1]} on {found[2]}"


def _has_grown(saved: tuple[int, ...], rebuilt: tuple[int, ...]) -> bool:
    """True where one dimension is a multiple of what it was and the others are the same."""
    if len(saved) != len(rebuilt):
        return False
    changed = [(a, b) for a, b in zip(saved, rebuilt, strict=True) if a != b]
    return (
        len(changed) == 1 and changed[0][0] > 0 and changed[0][1] > changed[0][0] and changed[0][1] % changed[0][0] == 0
    )


def _text(shapes: list[tuple[int, ...]]) -> str:
    return str(list(shapes[0])) if shapes else "none"


def _block_of(trace: TracebackType | None, model: nn.Module | None) -> str | None:
    """Path of the innermost module of the model whose code was running."""
    if model is None:
        return None
    names = {id(module): name for name, module in model.named_modules()}
    found = None
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        found = names.get(id(owner), found)
        trace = trace.tb_next
    return found or None


def _last_user_line(trace: TracebackType | None) -> str | None:
    """``file:line: source`` of the innermost frame that is neither a library's nor ours."""
    frames = [frame for frame in traceback.extract_tb(trace) if _is_users(frame.filename)]
    if not frames:
        return None
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}: {frames[-1].line}"


def _is_users(filename: str) -> bool:
    path = Path(filename)
    if filename.startswith("<") or _OWN_ROOT in path.parents:
        return False
    return not filename.startswith(_LIBRARY_ROOTS)


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_MESSAGE_LENGTH else text[: _MAX_MESSAGE_LENGTH - 3] + "..."
