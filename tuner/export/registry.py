"""Export formats by name."""

from __future__ import annotations

from tuner.export.accelerate import AccelerateExporter
from tuner.export.axolotl import AxolotlExporter
from tuner.export.base import Exporter
from tuner.export.deepspeed import DeepSpeedExporter
from tuner.export.huggingface import HuggingFaceExporter
from tuner.export.lightning import LightningExporter
from tuner.export.llamafactory import LlamaFactoryExporter
from tuner.export.policy import PolicyExporter

_EXPORTERS: tuple[Exporter, ...] = (
    PolicyExporter(),
    HuggingFaceExporter(),
    AccelerateExporter(),
    AxolotlExporter(),
    DeepSpeedExporter(),
    LightningExporter(),
    LlamaFactoryExporter(),
)

EXPORTERS: dict[str, Exporter] = {exporter.name: exporter for exporter in _EXPORTERS}
