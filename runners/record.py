"""What every record on the wire is made of: frozen, plain JSON, no unknown names."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Frozen; unknown names are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())
