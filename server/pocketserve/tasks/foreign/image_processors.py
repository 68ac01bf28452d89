"""Defaults of the image processors of Hugging Face's transformers, which write ``preprocessor_config.json``.

A file leaves out keys that have their class's default, so the class decides how a picture becomes an input. The source
of every default and every limit is huggingface/transformers, ``models/*/image_processing_pil_*.py``, version 5.24.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeGuard

from pocketserve.tasks.foreign.windows_ml import PICTURE_TASKS

_HALF: Final = (0.5, 0.5, 0.5)
_IMAGENET: Final = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_CLIP: Final = (
    (0.48145466, 0.4578275, 0.40821073),
    (0.26862954, 0.26130258, 0.27577711),
)
_FLAVA: Final = _CLIP
_NEAREST, _LANCZOS, _BILINEAR, _BICUBIC = range(4)
"""Pillow's numbers, which the files contain."""


def _square(side: int) -> dict[str, int]:
    return {"height": side, "width": side}


def _defaults(
    size: Mapping[str, int] | None,
    resample: int = _BILINEAR,
    normalization: tuple[tuple[float, ...], tuple[float, ...]] = (_HALF, _HALF),
    crop: int = 0,
    **more: Any,
) -> dict[str, Any]:
    values: dict[str, Any] = {
        "do_resize": size is not None,
        "size": size,
        "resample": resample,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": normalization[0],
        "image_std": normalization[1],
        "do_center_crop": bool(crop),
    }
    if crop:
        values["crop_size"] = _square(crop)
    return values | more


_DETECTOR_SIZE: Final = {"shortest_edge": 800, "longest_edge": 1333}
_DETECTOR: Final = _defaults(_DETECTOR_SIZE, _BILINEAR, _IMAGENET, do_pad=True)
_CLIP_LIKE: Final = _defaults({"shortest_edge": 224}, _BICUBIC, _CLIP, 224)

DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "BeitImageProcessor": _defaults(_square(224), _BICUBIC, crop_size=_square(224)),
    "BitImageProcessor": _CLIP_LIKE,
    "BlipImageProcessor": _defaults(_square(384), _BICUBIC, _CLIP),
    "ChineseCLIPImageProcessor": _CLIP_LIKE,
    "CLIPImageProcessor": _CLIP_LIKE,
    "ConditionalDetrImageProcessor": _DETECTOR,
    "ConvNextImageProcessor": _defaults(
        {"shortest_edge": 384}, _BICUBIC, crop_pct=224 / 256
    ),
    "DeformableDetrImageProcessor": _DETECTOR,
    "DeiTImageProcessor": _defaults(_square(256), _BICUBIC, crop=224),
    "DetrImageProcessor": _DETECTOR,
    "DINOv3ViTImageProcessor": _defaults(_square(224), _BILINEAR, _IMAGENET),
    "DonutImageProcessor": _defaults(
        {"height": 2560, "width": 1920}, do_thumbnail=True, do_pad=True
    ),
    "DPTImageProcessor": _defaults(
        _square(384), _BICUBIC, ensure_multiple_of=1, keep_aspect_ratio=False
    ),
    "EfficientFormerImageProcessor": _defaults(
        {"shortest_edge": 224}, _BICUBIC, _IMAGENET, 224
    ),
    "EfficientNetImageProcessor": _defaults(
        _square(346),
        _BICUBIC,
        crop_size=_square(289),
        rescale_offset=False,
        include_top=True,
    ),
    "EomtImageProcessor": _defaults(
        {"shortest_edge": 640, "longest_edge": 640}, _BILINEAR, _IMAGENET
    ),
    "FlavaImageProcessor": _defaults(_square(224), _BICUBIC, _FLAVA, 224),
    "GLPNImageProcessor": _defaults(
        None, do_normalize=False, do_resize=True, size_divisor=32
    ),
    "GroundingDinoImageProcessor": _DETECTOR,
    "ImageGPTImageProcessor": _defaults(_square(256), do_color_quantize=True),
    "LayoutLMv3ImageProcessor": _defaults(_square(224), apply_ocr=True),
    "LevitImageProcessor": _defaults({"shortest_edge": 224}, _BICUBIC, _IMAGENET, 224),
    "Mask2FormerImageProcessor": _defaults(
        _DETECTOR_SIZE, _BILINEAR, _IMAGENET, do_pad=True, size_divisor=32
    ),
    "MaskFormerImageProcessor": _defaults(
        _DETECTOR_SIZE, _BILINEAR, _IMAGENET, do_pad=True, size_divisor=32
    ),
    "MobileNetV1ImageProcessor": _defaults({"shortest_edge": 256}, crop=224),
    "MobileNetV2ImageProcessor": _defaults({"shortest_edge": 256}, crop=224),
    "MobileViTImageProcessor": _defaults(
        {"shortest_edge": 224},
        _BICUBIC,
        crop=256,
        do_normalize=False,
        do_flip_channel_order=True,
    ),
    "NougatImageProcessor": _defaults(
        {"height": 896, "width": 672},
        _BILINEAR,
        _IMAGENET,
        do_thumbnail=True,
        do_crop_margin=True,
        do_pad=True,
    ),
    "OneFormerImageProcessor": _defaults(
        _DETECTOR_SIZE, _BILINEAR, _IMAGENET, do_pad=True
    ),
    "OwlViTImageProcessor": _defaults(
        _square(768), _BICUBIC, _CLIP, crop_size=_square(768)
    ),
    "PerceiverImageProcessor": _defaults(_square(224), _BICUBIC, _IMAGENET, 256),
    "PoolFormerImageProcessor": _defaults(
        {"shortest_edge": 224}, _BICUBIC, _IMAGENET, 224, crop_pct=0.9
    ),
    "PvtImageProcessor": _defaults(_square(224), _BICUBIC, _IMAGENET),
    "RTDetrImageProcessor": _defaults(
        _square(640), _BILINEAR, _IMAGENET, do_normalize=False, do_pad=False
    ),
    "SegformerImageProcessor": _defaults(_square(512), _BILINEAR, _IMAGENET),
    "SiglipImageProcessor": _defaults(_square(224), _BICUBIC),
    "TextNetImageProcessor": _defaults(
        {"shortest_edge": 640},
        _BILINEAR,
        _IMAGENET,
        crop_size=_square(224),
        size_divisor=32,
    ),
    "Tipsv2DptImageProcessor": _defaults(_square(448), do_normalize=False),
    "Tipsv2ImageProcessor": _defaults(_square(448), do_normalize=False),
    "ViTImageProcessor": _defaults(_square(224)),
    "VitPoseImageProcessor": _defaults(
        {"height": 256, "width": 192}, _BILINEAR, _IMAGENET, do_affine_transform=True
    ),
    "YolosImageProcessor": _DETECTOR,
}

_RENAMED: Final = {
    "DFineImageProcessor": "RTDetrImageProcessor",
    "EfficientFormerFeatureExtractor": "EfficientFormerImageProcessor",
    "SegFormerImageProcessor": "SegformerImageProcessor",
    "ViTHybridImageProcessor": "BitImageProcessor",
}

OF_MODEL_TYPE: Final[Mapping[str, str]] = {
    "beit": "BeitImageProcessor",
    "bit": "BitImageProcessor",
    "clip": "CLIPImageProcessor",
    "conditional_detr": "ConditionalDetrImageProcessor",
    "convnext": "ConvNextImageProcessor",
    "convnextv2": "ConvNextImageProcessor",
    "cvt": "ConvNextImageProcessor",
    "d_fine": "RTDetrImageProcessor",
    "dab-detr": "ConditionalDetrImageProcessor",
    "data2vec-vision": "BeitImageProcessor",
    "deformable_detr": "DeformableDetrImageProcessor",
    "deit": "DeiTImageProcessor",
    "detr": "DetrImageProcessor",
    "dinat": "ViTImageProcessor",
    "dinov2": "BitImageProcessor",
    "dpt": "DPTImageProcessor",
    "efficientformer": "EfficientFormerImageProcessor",
    "efficientnet": "EfficientNetImageProcessor",
    "focalnet": "BitImageProcessor",
    "glpn": "GLPNImageProcessor",
    "hiera": "BitImageProcessor",
    "ijepa": "ViTImageProcessor",
    "imagegpt": "ImageGPTImageProcessor",
    "levit": "LevitImageProcessor",
    "lw_detr": "DeformableDetrImageProcessor",
    "mask2former": "Mask2FormerImageProcessor",
    "maskformer": "MaskFormerImageProcessor",
    "mobilenet_v1": "MobileNetV1ImageProcessor",
    "mobilenet_v2": "MobileNetV2ImageProcessor",
    "mobilevit": "MobileViTImageProcessor",
    "mobilevitv2": "MobileViTImageProcessor",
    "perceiver": "PerceiverImageProcessor",
    "poolformer": "PoolFormerImageProcessor",
    "pvt": "PvtImageProcessor",
    "pvt_v2": "PvtImageProcessor",
    "regnet": "ConvNextImageProcessor",
    "resnet": "ConvNextImageProcessor",
    "rt_detr": "RTDetrImageProcessor",
    "rt_detr_v2": "RTDetrImageProcessor",
    "segformer": "SegformerImageProcessor",
    "siglip": "SiglipImageProcessor",
    "swiftformer": "ViTImageProcessor",
    "swin": "ViTImageProcessor",
    "swinv2": "ViTImageProcessor",
    "table-transformer": "DetrImageProcessor",
    "upernet": "SegformerImageProcessor",
    "van": "ConvNextImageProcessor",
    "vit": "ViTImageProcessor",
    "vit_msn": "ViTImageProcessor",
    "yolos": "YolosImageProcessor",
}
"""Processor classes for files that don't name one. Source: huggingface/transformers, image_processing_auto.py."""


def processor_class(config: Mapping[str, Any], model_type: object = None) -> str:
    """Return the processor class of a file in its current spelling; empty if nothing names one.

    Old files call it ``ViTFeatureExtractor``; new ones may end in ``Fast`` or ``Pil``.
    """
    name = config.get("image_processor_type") or config.get("feature_extractor_type")
    if not isinstance(name, str):
        return OF_MODEL_TYPE.get(model_type, "") if isinstance(model_type, str) else ""
    name = (
        name.removesuffix("Fast")
        .removesuffix("Pil")
        .replace("FeatureExtractor", "ImageProcessor")
    )
    return _RENAMED.get(name, name)


def complete_processor(
    config: Mapping[str, Any], model_type: object = None
) -> dict[str, Any]:
    """Return a file's keys, completed by its class's defaults and without keys that have no effect.

    Args:
        config: ``preprocessor_config.json``.
        model_type: ``model_type`` of ``config.json``, for files that don't name their class.
    """
    if not config:
        return {}
    name = processor_class(config, model_type)
    defaults = DEFAULTS.get(name, {})
    values = {**defaults, **_without_none(config)}
    if defaults:
        _drop_unread(name, values, defaults)
    values["size"] = _size_of(name, values, defaults.get("size"))
    values["crop_size"] = _as_sides(values.get("crop_size"))
    values["pad_size"] = _as_sides(values.get("pad_size"))
    if name in _ROUNDS_UP:
        values["size_multiple_above"] = values.pop("size_divisor", None)
    if name == "GLPNImageProcessor":
        values["do_pad"] = values["do_resize"]
    for switch, keys in _SWITCHES.items():
        is_on = values.get(switch, switch in _ON_BY_DEFAULT)
        if is_on:
            continue
        for key in keys:
            values.pop(key, None)
    if name:
        values["image_processor_type"] = name
    return _without_none(values)


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that have a value."""
    return {key: value for key, value in values.items() if value is not None}


def _drop_unread(
    name: str, values: dict[str, Any], defaults: Mapping[str, Any]
) -> None:
    """Remove keys that a class doesn't read, and reset those it ignores."""
    for key, classes in _READ_BY.items():
        if name not in classes:
            values.pop(key, None)
    for key, classes in _IGNORED_BY.items():
        if name in classes:
            values[key] = defaults.get(key)


_READ_BY: Final[Mapping[str, tuple[str, ...]]] = {
    "rescale_offset": ("EfficientNetImageProcessor",),
    "include_top": ("EfficientNetImageProcessor",),
    "crop_pct": ("ConvNextImageProcessor", "PoolFormerImageProcessor"),
    "ensure_multiple_of": ("DPTImageProcessor",),
    "do_flip_channel_order": ("MobileViTImageProcessor",),
}
"""Keys that only these classes read; files of others may have them without effect."""

_IGNORED_BY: Final[Mapping[str, tuple[str, ...]]] = {
    "do_center_crop": (
        "ConditionalDetrImageProcessor",
        "DeformableDetrImageProcessor",
        "DetrImageProcessor",
        "DPTImageProcessor",
        "EomtImageProcessor",
        "GLPNImageProcessor",
        "GroundingDinoImageProcessor",
        "Mask2FormerImageProcessor",
        "MaskFormerImageProcessor",
        "OneFormerImageProcessor",
        "RTDetrImageProcessor",
        "SegformerImageProcessor",
        "YolosImageProcessor",
    ),
    "do_normalize": ("MobileViTImageProcessor",),
    "size": ("GLPNImageProcessor",),
    "pad_size": (
        "BeitImageProcessor",
        "DINOv3ViTImageProcessor",
        "DPTImageProcessor",
        "EfficientNetImageProcessor",
        "OneFormerImageProcessor",
        "SegformerImageProcessor",
        "ConvNextImageProcessor",
        "FlavaImageProcessor",
        "GLPNImageProcessor",
        "LayoutLMv3ImageProcessor",
        "MobileNetV2ImageProcessor",
        "MobileViTImageProcessor",
        "PerceiverImageProcessor",
        "TextNetImageProcessor",
    ),
}
"""Keys that these classes don't read, although most others do."""

_ROUNDS_UP: Final = (
    "Mask2FormerImageProcessor",
    "MaskFormerImageProcessor",
    "TextNetImageProcessor",
)
"""Classes whose ``size_divisor`` is a multiple to which sizes are rounded up; others pad."""

_ON_BY_DEFAULT: Final = ("do_rescale", "do_normalize", "do_resize")
_SWITCHES: Final = {
    "do_resize": (
        "size",
        "resample",
        "crop_pct",
        "ensure_multiple_of",
        "keep_aspect_ratio",
        "size_multiple_above",
    ),
    "do_center_crop": ("crop_size",),
    "do_rescale": ("rescale_factor", "rescale_offset", "offset"),
    "do_pad": ("pad_size", "size_divisor", "size_divisibility"),
    "do_color_quantize": ("clusters",),
}
"""Keys that have no effect while a switch is off."""


_DETECTORS: Final = tuple(
    name for name, values in DEFAULTS.items() if values is _DETECTOR
)
_MASK_FORMERS: Final = ("Mask2FormerImageProcessor", "MaskFormerImageProcessor")
_DETECTOR_LONGEST: Final = 1333


def _size_of(name: str, values: dict[str, Any], usual: object) -> object:
    """Return ``size`` in its current spelling, and remove the keys that decide on it.

    Args:
        name: the class.
        usual: the class's default size, whose keys decide the meaning of a number.
    """
    is_square = values.pop("default_to_square", None)
    longest = values.pop("max_size", None)
    size = values.get("size")
    if name in _DETECTORS:
        return _as_sides(size, False, longest or _DETECTOR_LONGEST)
    if name in _MASK_FORMERS:
        if size is usual and longest and isinstance(usual, Mapping):
            return {**usual, "longest_edge": longest}
        return _as_sides(size, False, longest)
    if is_square is None:
        has_edges = isinstance(usual, Mapping) and "shortest_edge" in usual
        is_square = not has_edges and name not in _NOT_SQUARE
    return _as_sides(size, bool(is_square))


_NOT_SQUARE: Final = ("RTDetrImageProcessor", "SiglipImageProcessor")
"""Classes with a square default whose numbers are lengths of the shorter side."""


def _as_sides(size: object, is_square: bool = True, longest: object = None) -> object:
    """Return a size in its current spelling: an object of height and width, or of edges.

    Old files contain a number, or a list of height and width; DETR's contain ``max_size`` beside it.

    Args:
        is_square: whether a number stands for both sides; else it is the shorter edge.
        longest: the longer edge that belongs to a number.
    """
    if isinstance(size, list | tuple) and len(size) == 2:
        return {"height": size[0], "width": size[1]}
    if isinstance(size, list | tuple) and len(size) == 1:
        size = size[0]
    if not isinstance(size, int):
        return size
    if is_square:
        return {"height": size, "width": size}
    if longest:
        return {"shortest_edge": size, "longest_edge": longest}
    return {"shortest_edge": size}


_OTHER_NAMES: Final = (
    "Apertus1p5 Aria BridgeTower CHMv2 Chameleon Cohere2Vision CohereCompass "
    "Cosmos3Edge DeepseekOcr2 DeepseekVL DeepseekVLHybrid DepthPro EfficientLoFTR "
    "Emu3 Ernie4_5_VLMoe Ernie4_5_VL_Moe Fuyu Gemma3 Gemma4 Gemma4Unified Glm46V "
    "Glm4v Glm5Next GlmImage Glmga GotOcr2 GraniteDocling HYV4VL HunYuanVL "
    "Idefics Idefics2 Idefics3 Inkling Inkling2 Janus Kimi_K25 Kosmos2_5 "
    "LayoutLMv2 Lfm2Vl LightGlue Llama4 Llava LlavaNext LlavaOnevision MiniCPMOcr "
    "MiniCPMV4_6 MiniMaxM3VL Mllama Molmo2 MuseGlimmer "
    "NemotronH_Omni_Reasoning_V3 NeoMME Ovis2 Owlv2 PI0 PPChart2Table "
    "PPDocLayoutV2 PPDocLayoutV3 PPDocLayoutV4 PPFormulaNet PPLCNet "
    "PPOCRV5ServerDet PPOCRV5ServerRec PPOCRV6SmallRec PaddleOCRVL PerceptionLM "
    "Phi4Multimodal Pix2Struct Pixtral PromptDepthAnything Qwen2VL RfDetr SLANeXt "
    "Sam Sam2 Sam3 Sapiens2 SegGpt Siglip2 SmolVLM Step3p7 SuperGlue SuperPoint "
    "Swin2SR TimmWrapper Tvp UVDoc UltraVBert UnlimitedOcr VideoLlama3 VideoLlava "
    "VideoMAE Vilt VitMatte Vivit ZoeDepth "
)
_OTHERS: Final = frozenset(f"{name}ImageProcessor" for name in _OTHER_NAMES.split())
"""Classes that prepare pictures in a way of their own, which the server doesn't have."""

_FORMS: Final = {
    "exact": {"height", "width"},
    "shortest": {"shortest_edge"},
    "edges": {"shortest_edge", "longest_edge"},
    "within": {"max_height", "max_width"},
}
_USUAL_FORMS: Final = tuple(_FORMS)
_DETECTOR_FORMS: Final = ("exact", "edges", "within")
_FORMS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "ConditionalDetrImageProcessor": _DETECTOR_FORMS,
    "ConvNextImageProcessor": ("shortest",),
    "DeformableDetrImageProcessor": _DETECTOR_FORMS,
    "DetrImageProcessor": _DETECTOR_FORMS,
    "DPTImageProcessor": ("exact",),
    "GroundingDinoImageProcessor": _DETECTOR_FORMS,
    "LevitImageProcessor": ("exact", "shortest"),
    "Mask2FormerImageProcessor": _DETECTOR_FORMS,
    "MaskFormerImageProcessor": _DETECTOR_FORMS,
    "PerceiverImageProcessor": ("exact",),
    "PoolFormerImageProcessor": ("exact", "shortest"),
    "RTDetrImageProcessor": _DETECTOR_FORMS,
    "TextNetImageProcessor": ("shortest",),
    "YolosImageProcessor": _DETECTOR_FORMS,
}
"""The forms of ``size`` that a class reads as the server does."""


def conflicting_keys(settings: Mapping[str, Any], task: str) -> list[str]:
    """Return keys whose values the class reads in another way than the server.

    Args:
        settings: all keys of the file, completed by its class's defaults.
        task: the task that reads them; only tasks on pictures do.
    """
    name = settings.get("image_processor_type")
    if task not in PICTURE_TASKS or not isinstance(name, str):
        return []
    if name in _OTHERS:
        return ["image_processor_type"]
    keys = []
    if not _has_known_size(name, settings):
        keys.append("size")
    is_cropped = bool(settings.get("do_center_crop"))
    if is_cropped:
        keys += _crop_conflicts(name, settings)
    if name == "EomtImageProcessor" and settings.get("do_pad"):
        keys.append("do_pad")
    if name == "DPTImageProcessor" and settings.get("size_divisor") is not None:
        keys.append("size_divisor")
    is_bilinear = settings.get("resample", _BILINEAR) == _BILINEAR
    if name in _OF_TORCHVISION and not is_bilinear:
        keys.append("resample")
    if is_cropped and name in _OF_TORCHVISION:
        keys.append("do_center_crop")
    if is_cropped and name == "PerceiverImageProcessor":
        keys += _perceiver_conflicts(settings)
    return list(dict.fromkeys(keys))


def _crop_conflicts(name: str, settings: Mapping[str, Any]) -> list[str]:
    """Return conflicting keys of a class that crops."""
    keys = []
    if not _has_sides(settings.get("crop_size")):
        keys.append("crop_size")
    if name in _CROPS_ITSELF and settings.get("size"):
        keys.append("do_center_crop")
    if settings.get("pad_size") is not None:
        keys.append("pad_size")
    return keys


def _perceiver_conflicts(settings: Mapping[str, Any]) -> list[str]:
    """Return keys of a crop that Perceiver takes by the ratio of two sizes."""
    size, crop = settings.get("size"), settings.get("crop_size")
    if size is None:
        return ["do_resize"]
    if not _has_sides(size):
        return ["size"]
    if not _has_sides(crop):
        return []  # it is named already
    is_larger = size["height"] > crop["height"] or size["width"] > crop["width"]
    return ["crop_size"] if is_larger else []


_OF_TORCHVISION: Final = (
    "DINOv3ViTImageProcessor",
    "Tipsv2DptImageProcessor",
    "Tipsv2ImageProcessor",
)
"""Classes that resize pictures as torchvision does; Pillow's other filters round."""

_CROPS_ITSELF: Final = ("ConvNextImageProcessor",)
"""Classes that crop before ``do_center_crop`` does."""


def _has_known_size(name: str, settings: Mapping[str, Any]) -> bool:
    """Return whether the size has a form that the class reads as the server does."""
    size = settings.get("size")
    if size is None:
        return True
    if not isinstance(size, Mapping):
        return False
    keys = {key for key, value in size.items() if value is not None}
    forms = _FORMS_OF.get(name, _USUAL_FORMS)
    return any(keys == _FORMS[form] for form in forms)


def _has_sides(size: object) -> TypeGuard[Mapping[str, Any]]:
    """Return whether a size has a height and a width in pixels."""
    if not isinstance(size, Mapping):
        return False
    sides = (size.get("height"), size.get("width"))
    return all(type(side) is int and side > 0 for side in sides)
