"""Random batches for transformers' models, by what kind of input they read. Loss is averaged over every position."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from runners.base import WorkloadError
from runners.workloads.base import BatchMaker
from runners.workloads.huggingface_task import task_of_class

#: Where a config names no image size, as for ResNet and RegNet: that of ImageNet, which they are trained on.
_IMAGE_SIZE = 224
#: One second at the 16 kHz that wav2vec 2.0 and its relatives are trained on.
_SOUND_SAMPLES = 16_000
#: Frames of about 20 ms each that stand for two seconds, for models that read features and state no length.
_FEATURE_FRAMES = 100


def transformers_batch_maker(model: nn.Module) -> BatchMaker | None:
    """Makes random batches for a model of transformers; None where it is none or its inputs are not known.

    What is made raises a `WorkloadError` where the model reads text and no length is given.
    """
    transformers = sys.modules.get("transformers")
    if transformers is None or not isinstance(model, transformers.PreTrainedModel):
        return None
    task = task_of_class(type(model))
    if task is None:
        return None
    dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
    config, main_input, model_class = model.config, str(model.main_input_name), type(model).__name__
    make: Callable[[_Inputs, int], dict[str, Any]] = _MAKERS[task.inputs]

    def make_batch(micro_batch_size: int, sequence_length: int | None) -> dict[str, Any]:
        return make(_Inputs(config, main_input, sequence_length, dtype, model_class), micro_batch_size)

    return make_batch


class _Inputs:
    """What one batch is drawn from: the config's sizes and the length that search.yaml names."""

    def __init__(
        self, config: Any, main_input: str, sequence_length: int | None, dtype: torch.dtype, model_class: str
    ) -> None:
        self.config = config
        self.main_input = main_input
        self.sequence_length = sequence_length
        self.dtype = dtype
        self.model_class = model_class

    def length(self) -> int:
        if self.sequence_length is None:
            raise WorkloadError(
                f"batch.sequence_length is not set, and {self.model_class} reads text; set it to tokens per sample"
            )
        return self.sequence_length

    def tokens(self, micro_batch_size: int) -> torch.Tensor:
        """Random tokens without padding; shape (micro_batch_size, sequence_length)."""
        text = self.config.get_text_config(decoder=True)
        vocab_size = int(text.vocab_size)
        tokens = torch.randint(0, vocab_size, (micro_batch_size, self.length()))
        padding = getattr(text, "pad_token_id", None)
        if padding is not None and vocab_size > 1:
            tokens[tokens == padding] = (padding + 1) % vocab_size
        return tokens

    def classes(self, *shape: int) -> torch.Tensor:
        """Labels of a classifier; random numbers where the model has one output and so learns a value."""
        num_labels = int(self.config.num_labels)
        return torch.rand(shape, dtype=self.dtype) if num_labels == 1 else torch.randint(0, num_labels, shape)

    def image_shape(self) -> tuple[int, int, int]:
        vision = getattr(self.config, "vision_config", self.config)
        size = getattr(vision, "image_size", None) or getattr(vision, "crop_size", None) or _IMAGE_SIZE
        if isinstance(size, dict):
            size = (size["height"], size["width"])
        height, width = (size, size) if isinstance(size, int) else size
        channels = getattr(vision, "num_channels", None) or getattr(vision, "in_channels", None) or 3
        return int(channels), int(height), int(width)

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=self.dtype)


def _text(inputs: _Inputs, micro_batch_size: int) -> dict[str, Any]:
    tokens = inputs.tokens(micro_batch_size)
    return {"input_ids": tokens, "labels": tokens.clone()}


def _text_and_class(inputs: _Inputs, micro_batch_size: int) -> dict[str, Any]:
    return {"input_ids": inputs.tokens(micro_batch_size), "labels": inputs.classes(micro_batch_size)}


def _text_and_tags(inputs: _Inputs, micro_batch_size: int) -> dict[str, Any]:
    labels = inputs.classes(micro_batch_size, inputs.length())
    return {"input_ids": inputs.tokens(micro_batch_size), "labels": labels}


def _images(inputs: _Inputs, micro_batch_size: int) -> dict[str, Any]:
    images = inputs.random(micro_batch_size, *inputs.image_shape())
    return {inputs.main_input: images, "labels": inputs.classes(micro_batch_size)}


def _videos(inputs: _Inputs, micro_batch_size: int) -> dict[str, Any]:
    frames = getattr(inputs.config, "num_frames", None) or inputs.config.frames_per_clip
    videos = inputs.random(micro_batch_size, int(frames), *inputs.image_shape())
    return {inputs.main_input: videos, "labels": inputs.classes(micro_batch_size)}


def _sounds(inputs: _Inputs, micro_batch_size: int) -> dict[str, Any]:
    config, length = inputs.config, inputs.sequence_length
    if hasattr(config, "num_mel_bins") and hasattr(config, "max_length"):  # A spectrogram of fixed length.
        shape: tuple[int, ...] = (config.max_length, config.num_mel_bins)
    elif inputs.main_input == "input_features":
        shape = (length or _FEATURE_FRAMES, config.feature_projection_input_dim)
    else:  # The wave itself.
        shape = (length or _SOUND_SAMPLES,)
    return {
        inputs.main_input: inputs.random(micro_batch_size, *shape),
        "labels": inputs.classes(micro_batch_size),
    }


def _speech_and_text(inputs: _Inputs, micro_batch_size: int) -> dict[str, Any]:
    config = inputs.config
    # Whisper halves the number of frames by a convolution before its encoder's positions.
    sound = inputs.random(micro_batch_size, config.num_mel_bins, 2 * config.max_source_positions)
    return {inputs.main_input: sound, "labels": inputs.tokens(micro_batch_size)}


_MAKERS: dict[str, Callable[[_Inputs, int], dict[str, Any]]] = {
    "text": _text,
    "text_and_class": _text_and_class,
    "text_and_tags": _text_and_tags,
    "images": _images,
    "videos": _videos,
    "sounds": _sounds,
    "speech_and_text": _speech_and_text,
}
