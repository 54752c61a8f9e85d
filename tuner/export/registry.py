"""Export formats by name."""

from __future__ import annotations

from tuner.export.accelerate import AccelerateExporter
from tuner.export.axolotl import AxolotlExporter
from tuner.export.base import Exporter
from tuner.export.deepspeed import DeepSpeedExporter
from tuner.export.huggingface import HuggingFaceExporter
from tuner.export.lightning import LightningExporter
from tuner.export.llamafactory import LlamaFactoryExporter
from tuner.export.megatron import MegatronExporter
from tuner.export.mindspeed import MindSpeedExporter
from tuner.export.policy import PolicyExporter
from tuner.export.primus import PrimusExporter
from tuner.export.torchtitan import TorchtitanExporter

_EXPORTERS: tuple[Exporter, ...] = (
    PolicyExporter(),
    HuggingFaceExporter(),
    AccelerateExporter(),
    AxolotlExporter(),
    DeepSpeedExporter(),
    LightningExporter(),
    LlamaFactoryExporter(),
    MegatronExporter(),
    MindSpeedExporter(),
    PrimusExporter(),
    TorchtitanExporter(),
)

EXPORTERS: dict[str, Exporter] = {exporter.name: exporter for exporter in _EXPORTERS}
