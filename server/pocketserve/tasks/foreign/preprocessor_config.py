"""Keys of ``preprocessor_config.json`` of transformers' image processors.

``tasks/vision/preprocessing.py`` reads them. Files of sounds have a table of their own in ``feature_extractor.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pocketserve.tasks.foreign.feature_extractor import is_of_sounds
from pocketserve.tasks.foreign.image_processors import (
    complete_processor,
    conflicting_keys,
)
from pocketserve.tasks.foreign.keys import Effect, ForeignFile, Key
from pocketserve.tasks.foreign.windows_ml import PICTURE_TASKS

NAME = "preprocessor_config.json"
_UTILS = "huggingface/transformers, image_processing_utils.py"
_MODELS = "huggingface/transformers, models/{0}/image_processing_{0}.py"


def _is_of_pictures(content: Mapping[str, Any]) -> bool:
    """Return whether an image processor wrote the file."""
    return not is_of_sounds(content)


def _rows(effect: Effect, source: str, *names: str) -> tuple[Key, ...]:
    return tuple(Key(name, effect, source) for name in names)


def _unsupported(model: str, *names: str) -> tuple[Key, ...]:
    source = _MODELS.format(model)
    return tuple(
        Key(name, Effect.UNSUPPORTED, source, tasks=PICTURE_TASKS) for name in names
    )


_APPLIED = (
    *_rows(Effect.APPLIED, _UTILS, "image_processor_type", "feature_extractor_type"),
    *_rows(Effect.APPLIED, _UTILS, "do_resize", "size", "default_to_square"),
    *_rows(
        Effect.APPLIED,
        _UTILS,
        "size.height",
        "size.width",
        "size.shortest_edge",
        "size.longest_edge",
        "size.max_height",
        "size.max_width",
    ),
    *_rows(Effect.APPLIED, _UTILS, "do_center_crop", "crop_size"),
    *_rows(Effect.APPLIED, _UTILS, "crop_size.height", "crop_size.width"),
    *_rows(
        Effect.APPLIED,
        _UTILS,
        "do_rescale",
        "rescale_factor",
        "do_normalize",
        "image_mean",
        "image_std",
    ),
    *_rows(Effect.APPLIED, _UTILS, "do_pad", "pad_size"),
    *_rows(Effect.APPLIED, _MODELS.format("maskformer"), "size_multiple_above"),
    *_rows(Effect.APPLIED, _MODELS.format("detr"), "max_size"),
    *_rows(Effect.APPLIED, _MODELS.format("convnext"), "crop_pct"),
    *_rows(Effect.APPLIED, _MODELS.format("mobilevit"), "do_flip_channel_order"),
    *_rows(
        Effect.APPLIED, _MODELS.format("efficientnet"), "rescale_offset", "include_top"
    ),
    *_rows(Effect.APPLIED, _MODELS.format("dpt"), "ensure_multiple_of"),
)

_FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
_NAMES_OF_FILTERS = tuple(
    f"{prefix}{name}"
    for prefix in ("", "PIL.Image.", "PIL.Image.Resampling.", "PILImageResampling.")
    for name in (*_FILTERS, *(name.upper() for name in _FILTERS))
)
"""The documentation of transformers shows ``PIL.Image.BOX``."""

_UNSUPPORTED = (
    Key(
        "resample",
        Effect.UNSUPPORTED,
        f"{_UTILS}; the neutral values are applied",
        (*range(len(_FILTERS)), *_NAMES_OF_FILTERS),
        PICTURE_TASKS,
    ),
    *(
        Key(name, Effect.UNSUPPORTED, _UTILS, tasks=PICTURE_TASKS)
        for name in ("size.*", "crop_size.*")
    ),
    *(
        Key(
            name,
            Effect.UNSUPPORTED,
            _MODELS.format("maskformer"),
            (0, 1),
            PICTURE_TASKS,
            is_of_free_sizes=True,
        )
        for name in ("size_divisor", "size_divisibility")
    ),
    *_unsupported("dpt", "keep_aspect_ratio"),
    *_unsupported("imagegpt", "do_color_quantize", "clusters"),
    *_unsupported("donut", "do_thumbnail", "do_align_long_axis"),
    *_unsupported("nougat", "do_crop_margin"),
    *_unsupported("layoutlmv2", "apply_ocr"),
    *_unsupported("vitpose", "do_affine_transform"),
    *_unsupported("superpoint", "do_grayscale"),
    *_unsupported("vivit", "offset"),
    *_unsupported("idefics2", "do_image_splitting"),
    *_unsupported("eomt", "do_split_image"),
    *_unsupported("aria", "split_image", "max_image_size"),
    *_unsupported("gemma3", "do_pan_and_scan"),
    *_unsupported("got_ocr2", "crop_to_patches"),
    *_unsupported("siglip2", "max_num_patches"),
    *_unsupported("pix2struct", "max_patches"),
    *_unsupported("pp_lcnet", "resize_short"),
    *_unsupported("qwen2_vl", "min_pixels", "max_pixels"),
    *_unsupported("pp_ocrv5_server_det", "limit_side_len"),
)

_HARMLESS = (
    *_rows(
        Effect.HARMLESS,
        _UTILS,
        "do_convert_rgb",
        "input_data_format",
        "data_format",
        "return_tensors",
    ),
    *_rows(
        Effect.HARMLESS,
        _UTILS,
        "device",
        "disable_grouping",
        "processor_class",
        "auto_map",
        "use_fast",
    ),
    *_rows(
        Effect.HARMLESS,
        _UTILS,
        "_valid_processor_keys",
        "_processor_class",
        "model_input_names",
        "image_seq_length",
    ),
    # These prepare the annotations of a training set.
    *_rows(
        Effect.HARMLESS, _MODELS.format("beit"), "do_reduce_labels", "reduce_labels"
    ),
    *_rows(Effect.HARMLESS, _MODELS.format("detr"), "format", "do_convert_annotations"),
    *_rows(
        Effect.HARMLESS,
        _MODELS.format("maskformer"),
        "ignore_index",
        "num_labels",
        "num_text",
    ),
    *_rows(
        Effect.HARMLESS,
        _MODELS.format("oneformer"),
        "class_info_file",
        "metadata",
        "repo_path",
    ),
)

TABLE = ForeignFile(
    NAME,
    (*_APPLIED, *_UNSUPPORTED, *_HARMLESS),
    complete=complete_processor,
    belongs=_is_of_pictures,
    media="picture",
    conflicts=conflicting_keys,
)
