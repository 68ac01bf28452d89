"""The ``config.json`` of timm: how pictures become inputs, and the names of the classes.

Source: huggingface/pytorch-image-models, timm/models/_hub.py (``_parse_model_cfg``) and timm/data/config.py
(``resolve_data_config``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

SECTION: Final = "pretrained_cfg"
IMAGENET_MEAN: Final = (0.485, 0.456, 0.406)
IMAGENET_STD: Final = (0.229, 0.224, 0.225)
_SETTINGS: Final = (
    "input_size",
    "interpolation",
    "crop_pct",
    "crop_mode",
    "mean",
    "std",
)
_DEFAULTS: Final[Mapping[str, Any]] = {
    "input_size": [3, 224, 224],
    "interpolation": "bicubic",
    "crop_pct": 0.875,
    "crop_mode": "center",
    "mean": IMAGENET_MEAN,
    "std": IMAGENET_STD,
}


def timm_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with timm's defaults; empty for other libraries' files."""
    section = config.get(SECTION)
    if section is None and isinstance(config.get("architecture"), str):
        section = config  # versions before 0.6 wrote the settings without a section
    if not isinstance(section, Mapping):
        return {}
    stated = {key: section[key] for key in _SETTINGS if section.get(key)}
    return {**_DEFAULTS, **stated} if stated else {}


def timm_labels(config: Mapping[str, Any]) -> object:
    """Return the class names as the file has them: a list, or a map by number."""
    if "label_names" in config:
        return config["label_names"]
    if not timm_settings(config):
        return None
    section = config.get(SECTION)
    if isinstance(section, Mapping):
        return section.get("label_names")
    return config.get("labels")  # of versions before 0.6


def with_section(config: Mapping[str, Any], model_type: object) -> Mapping[str, Any]:
    """Return a file in timm's current form, for the check of its keys."""
    if SECTION in config or not timm_settings(config):
        return config
    return {"architecture": config["architecture"], SECTION: config}
