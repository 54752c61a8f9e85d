"""Which class of transformers trains a model type by itself: the one whose forward computes a loss from labels."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Task:
    """One family of transformers' Auto classes.

    Attributes:
        inputs: What a batch holds; a name in `runners.workloads.huggingface_batch`.
        names: Constant of transformers that maps a model type to its class of this family.
    """

    inputs: str
    auto_class: str
    names: str

    def class_names(self) -> dict[str, tuple[str, ...]]:
        """Model type -> classes; empty where the installed transformers does not know this family."""
        module = importlib.import_module("transformers.models.auto.modeling_auto")
        mapping: dict[str, Any] = getattr(module, self.names, {})
        return {kind: names if isinstance(names, tuple) else (names,) for kind, names in mapping.items()}


_SEQ_TO_SEQ = Task("text", "AutoModelForSeq2SeqLM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES")
_SPEECH = Task("speech_and_text", "AutoModelForSpeechSeq2Seq", "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES")
_MASKED = Task("text", "AutoModelForMaskedLM", "MODEL_FOR_MASKED_LM_MAPPING_NAMES")
_CAUSAL = Task("text", "AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES")

#: In the order they are tried. Language modelling comes first, since it is what most types are pre-trained with.
TASKS = (
    _SEQ_TO_SEQ,
    _SPEECH,
    _MASKED,
    _CAUSAL,
    Task("images", "AutoModelForImageClassification", "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES"),
    Task("videos", "AutoModelForVideoClassification", "MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING_NAMES"),
    Task("sounds", "AutoModelForAudioClassification", "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES"),
    Task("text_and_class", "AutoModelForSequenceClassification", "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES"),
    Task("text_and_tags", "AutoModelForTokenClassification", "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES"),
)


def task_of_config(config: Any) -> Task | None:
    """The first family that trains a model of this config; None where there is none."""
    encoder_decoder = bool(getattr(config, "is_encoder_decoder", False))
    excluded = {_CAUSAL, _MASKED} if encoder_decoder else {_SEQ_TO_SEQ, _SPEECH}
    if getattr(config, "is_decoder", False):
        excluded.add(_MASKED)
    return next((t for t in TASKS if t not in excluded and config.model_type in t.class_names()), None)


def task_of_class(model_class: type) -> Task | None:
    """The family that a model class, or a class it derives from, belongs to; None where there is none."""
    for base in model_class.__mro__:
        for task in TASKS:
            if any(base.__name__ in names for names in task.class_names().values()):
                return task
    return None
