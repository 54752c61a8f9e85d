"""``model.args`` -> a config of transformers. A config swallows any name, so names are checked here before."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from runners.base import WorkloadError
from runners.workloads.nearest import known_names
from runners.workloads.user_code import user_code

#: Taken by every config although they are no fields of it.
_UNIVERSAL_ARGS = ("attn_implementation", "num_labels", "output_attentions", "experts_implementation")
#: Taken by configs with rotary positions although they end up inside ``rope_parameters``.
_ROTARY_ARGS = ("rope_theta", "rope_scaling", "partial_rotary_factor")
#: Set by model.dtype and nowhere else.
_DTYPE_ARGS = ("dtype", "torch_dtype")


def transformers_config(transformers: Any, name: str, args: Mapping[str, Any], *, base_dir: Path) -> Any:
    """A config for training: of a model type, or of a folder with a ``config.json`` that the args override.

    What users leave out is filled in: special tokens lie inside the vocabulary, and the key/value cache is off.

    Raises:
        WorkloadError: Type, folder or an argument's name does not exist, or transformers refuses a value.
    """
    types: Mapping[str, Any] = transformers.CONFIG_MAPPING
    folder = (base_dir / Path(name).expanduser()).resolve()
    factory = f"huggingface:{name}"
    refused = f"model.args do not make a config of {factory}: it"
    if (folder / "config.json").is_file():
        with user_code(f"model.factory is {factory}, whose config.json"):
            stored = transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True)
        _check_names(type(stored), args, "model.args", factory)
        with user_code(refused):
            config = transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True, **args)
    elif name in types:
        _check_names(types[name], args, "model.args", factory)
        with user_code(refused):
            config = types[name](**args)
    else:
        raise WorkloadError(_unknown_type(name, types, folder))
    for part, given in _with_nested(config, args):
        _fill_in(part, given)
    return config


def _unknown_type(name: str, types: Mapping[str, Any], folder: Path) -> str:
    where = f"model.factory is huggingface:{name}"
    if folder.is_dir():
        return f"{where}, but the folder {folder} holds no config.json; save the model's config there"
    if "/" in name:
        return (
            f"{where}, but there is no folder {folder}; models are built from their config without network: "
            "save the model's config.json into a folder and name that, or name a model type"
        )
    return (
        f"{where}, which is neither a model type of the installed transformers nor a folder; {known_names(name, types)}"
    )


def _check_names(config_class: Any, args: Mapping[str, Any], key: str, factory: str) -> None:
    known = _known_args(config_class)
    aliases = getattr(config_class, "attribute_map", {})
    for name, value in args.items():
        if name in _DTYPE_ARGS:
            raise WorkloadError(f"{key}.{name} is set; the parameters' type is set by model.dtype, so remove it")
        if name not in known:
            raise WorkloadError(f"{key}.{name} is set, but {factory} has no such setting; {known_names(name, known)}")
        if aliases.get(name, name) != name and aliases[name] in args:
            raise WorkloadError(f"{key}.{name} and {key}.{aliases[name]} are one setting of {factory}; keep one")
        nested = getattr(config_class, "sub_configs", {}).get(name)
        if isinstance(value, dict) and inspect.isclass(nested) and hasattr(nested, "attribute_map"):
            _check_names(nested, value, f"{key}.{name}", factory)


def _known_args(config_class: Any) -> set[str]:
    parameters = inspect.signature(config_class.__init__).parameters.values()
    known = {p.name for p in parameters if p.kind is not p.VAR_KEYWORD and not p.name.startswith("_")} - {"self"}
    known |= set(getattr(config_class, "attribute_map", {})) | set(_UNIVERSAL_ARGS)
    try:
        default: Any = config_class()
    except (TypeError, ValueError, KeyError):  # Composite configs have no default.
        return known
    if hasattr(default, "rope_parameters") or hasattr(default, "rope_theta"):
        known |= set(_ROTARY_ARGS)
    return known | {name for name in vars(default) if not name.startswith("_")}


def _with_nested(config: Any, args: Mapping[str, Any]) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    yield config, args
    for name in getattr(config, "sub_configs", {}):
        nested = getattr(config, name, None)
        if nested is not None and hasattr(nested, "model_type"):
            given = args.get(name, {})
            yield from _with_nested(nested, given if isinstance(given, dict) else {})


def _fill_in(config: Any, given: Mapping[str, Any]) -> None:
    """Sets what training needs and the user left out."""
    if hasattr(config, "use_cache") and "use_cache" not in given:
        config.use_cache = False
    vocab_size = getattr(config, "vocab_size", None)
    if not isinstance(vocab_size, int):
        return
    if getattr(config, "is_encoder_decoder", False):
        _set_where_absent(config, "pad_token_id", 0)
        _set_where_absent(config, "decoder_start_token_id", config.pad_token_id)
    for name in [n for n in vars(config) if n.endswith("_token_id") and n not in given]:
        value = getattr(config, name)
        if isinstance(value, int):
            setattr(config, name, min(value, vocab_size - 1))
        elif isinstance(value, list):
            setattr(config, name, [min(token, vocab_size - 1) for token in value])


def _set_where_absent(config: Any, name: str, value: int) -> None:
    if getattr(config, name, None) is None:
        setattr(config, name, value)
