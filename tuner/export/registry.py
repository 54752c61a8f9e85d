"""Export formats by name."""

from __future__ import annotations

from tuner.export.base import Exporter
from tuner.export.huggingface import HuggingFaceExporter
from tuner.export.policy import PolicyExporter

_EXPORTERS: tuple[Exporter, ...] = (
    PolicyExporter(),
    HuggingFaceExporter(),
)

EXPORTERS: dict[str, Exporter] = {exporter.name: exporter for exporter in _EXPORTERS}
