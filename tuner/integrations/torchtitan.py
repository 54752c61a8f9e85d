"""An activation-checkpointing policy for torchtitan 0.3 that recomputes exactly what policy.yaml says.

torchtitan's own policies treat all blocks alike. Needs torchtitan and torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from torchtitan.distributed.activation_checkpoint import ActivationCheckpointing

from runners.apply_policy import apply_policy
from search_spaces.policy import SEGMENT, PolicyError
from search_spaces.policy_file import load_policy


class MeasuredPolicy(ActivationCheckpointing):
    """For the trainer config: ``config.activation_checkpoint = MeasuredPolicy.Config(policy_file="policy.yaml")``.

    torchtitan applies it before it compiles and shards the model. Names of modules, parameters and checkpoints stay as
    they are without recompute. What a config of torchtitan says of RNG state is not used: the file says it.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(ActivationCheckpointing.Config):
        """Attributes:
        policy_file: The policy, as ``tune export --format policy`` writes it; relative to where training starts.
        """

        policy_file: str

    def apply(self, model: nn.Module) -> None:
        """Puts the policy in force on a whole model.

        Raises:
            PolicyError: The file is none, was made for other blocks, or holds segments, which blocks that are sharded
                one by one cannot run as one.
        """
        assert isinstance(self.config, MeasuredPolicy.Config), "built from its own config"
        policy = load_policy(self.config.policy_file)
        for placement in policy.placement:
            for region in placement.canonical().regions:
                if region.action == SEGMENT:
                    raise PolicyError(
                        f"{self.config.policy_file}: blocks {region.first} to {region.last} of {placement.blocks} are "
                        "recomputed in segments, but torchtitan shards each block on its own; export a policy without "
                        "segments"
                    )
        apply_policy(model, policy)
