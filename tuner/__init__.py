"""Decides what to try next, when to stop and what to export. The names here are what training code uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runners.apply_policy import AppliedPolicy, apply_policy
    from search_spaces.policy import PolicyError, RecomputePolicy
    from search_spaces.policy_file import load_policy

__all__ = ["AppliedPolicy", "PolicyError", "RecomputePolicy", "apply_policy", "load_policy"]


def __getattr__(name: str) -> Any:
    """Loads a public name when it is first asked for, so that `import tuner` and `tune --help` never load torch."""
    if name in ("AppliedPolicy", "apply_policy"):
        from runners import apply_policy as module

        return getattr(module, name)
    if name == "load_policy":
        from search_spaces.policy_file import load_policy as function

        return function
    if name in ("PolicyError", "RecomputePolicy"):
        from search_spaces import policy

        return getattr(policy, name)
    raise AttributeError(f"module 'tuner' has no attribute {name!r}; it has {', '.join(__all__)}")
