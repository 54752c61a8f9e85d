"""Export formats by name."""

from __future__ import annotations

from tuner.export.base import Exporter
from tuner.export.policy import PolicyExporter

EXPORTERS: dict[str, Exporter] = {"policy": PolicyExporter()}
