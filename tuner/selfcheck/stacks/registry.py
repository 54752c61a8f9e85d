"""Self-checks by the name of the format."""

from __future__ import annotations

from tuner.selfcheck.stacks.accelerate import AccelerateCheck
from tuner.selfcheck.stacks.axolotl import AxolotlCheck
from tuner.selfcheck.stacks.base import StackCheck
from tuner.selfcheck.stacks.deepspeed import DeepSpeedCheck
from tuner.selfcheck.stacks.huggingface import HuggingFaceCheck
from tuner.selfcheck.stacks.lightning import LightningCheck
from tuner.selfcheck.stacks.llamafactory import LlamaFactoryCheck
from tuner.selfcheck.stacks.policy import PolicyCheck

STACK_CHECKS: dict[str, StackCheck] = {
    "policy": PolicyCheck(),
    "huggingface": HuggingFaceCheck(),
    "accelerate": AccelerateCheck(),
    "axolotl": AxolotlCheck(),
    "deepspeed": DeepSpeedCheck(),
    "lightning": LightningCheck(),
    "llamafactory": LlamaFactoryCheck(),
}
