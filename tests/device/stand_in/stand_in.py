"""Builds the stand-in accelerator and registers it with torch, as an accelerator's own package does on import.

torch imports this by itself in every process that finds `register` as an entry point of the group ``torch.backends``;
see `install`. RECOMPUTE_TUNER_STAND_IN names the device type and RECOMPUTE_TUNER_STAND_IN_BUILD the folder that the
compiled part is kept in.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

NAME_VARIABLE = "RECOMPUTE_TUNER_STAND_IN"
BUILD_VARIABLE = "RECOMPUTE_TUNER_STAND_IN_BUILD"
DEVICE_NAME = "Stand-in 2G"


def register() -> None:
    """Makes the device known to torch under the name in the environment."""
    name, folder = os.environ[NAME_VARIABLE], Path(os.environ[BUILD_VARIABLE])
    torch.utils.rename_privateuse1_backend(name)
    torch._register_device_module(name, _device_module(name, build(folder)))
    torch.utils.generate_methods_for_privateuse1_backend()


def build(folder: Path) -> Any:
    """The compiled part, compiled unless the folder holds it."""
    from torch.utils.cpp_extension import load

    folder.mkdir(parents=True, exist_ok=True)
    source = Path(__file__).with_suffix(".cpp")
    # Nothing here is hot: compiling without optimization takes half the time.
    return load("stand_in_device", [str(source)], build_directory=str(folder), extra_cflags=["-O0", "-w"])


def install(folder: Path) -> None:
    """Writes what makes Python take this file for an installed package, once the folder is on PYTHONPATH."""
    metadata = folder / "stand_in_device-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: stand-in-device\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[torch.backends]\nstand_in = stand_in:register\n")
    for part in ("stand_in.py", "stand_in.cpp"):
        (folder / part).symlink_to(Path(__file__).with_name(part))


def _device_module(name: str, compiled: Any) -> ModuleType:
    """``torch.NAME``; it has no figures of memory, which torch.accelerator offers as well."""
    module: Any = ModuleType(f"torch.{name}")
    module.is_available = lambda: True
    module.is_initialized = lambda: True
    module.device_count = lambda: 1
    # torch.utils.checkpoint keeps random states of devices whose module says so, and looks for them in this context.
    module._initialized = True
    module.device = contextlib.nullcontext
    module.current_device = lambda: 0
    module.set_device = lambda device: None
    module._is_in_bad_fork = lambda: False
    module.manual_seed = module.manual_seed_all = compiled.seed
    module.get_rng_state = lambda device=None: compiled.state()
    module.set_rng_state = lambda state, device=None: compiled.set_state(state)
    module.get_device_name = lambda device=None: DEVICE_NAME
    module.get_device_properties = lambda device=None: SimpleNamespace(total_memory=compiled.total_bytes())
    module.set_per_process_memory_fraction = lambda fraction, device=None: compiled.set_fraction(fraction)
    module.get_amp_supported_dtype = lambda: [torch.bfloat16]
    return module
