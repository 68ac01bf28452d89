"""Defaults of the image processors of Hugging Face's transformers, which write ``preprocessor_config.json``.

A file leaves out keys that have their class's default, so the class decides how a picture becomes an input. The source
of every default is huggingface/transformers, ``models/*/image_processing_pil_*.py``, version 5.24.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

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
        None, do_normalize=False, size_divisor=32, do_pad=True
    ),
    "GroundingDinoImageProcessor": _DETECTOR,
    "ImageGPTImageProcessor": _defaults(_square(256), do_color_quantize=True),
    "LayoutLMv2ImageProcessor": _defaults(
        _square(224),
        do_rescale=False,
        do_normalize=False,
        do_flip_channel_order=True,
        apply_ocr=True,
    ),
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
    "Owlv2ImageProcessor": _defaults(_square(960), _BILINEAR, _CLIP, do_pad=True),
    "OwlViTImageProcessor": _defaults(
        _square(768), _BICUBIC, _CLIP, crop_size=_square(768)
    ),
    "PerceiverImageProcessor": _defaults(_square(224), _BICUBIC, _IMAGENET, 256),
    "PoolFormerImageProcessor": _defaults(
        {"shortest_edge": 224}, _BICUBIC, _IMAGENET, 224, crop_pct=0.9
    ),
    "PvtImageProcessor": _defaults(_square(224), _BICUBIC, _IMAGENET),
    "RfDetrImageProcessor": _DETECTOR,
    "RTDetrImageProcessor": _defaults(
        _square(640), _BILINEAR, _IMAGENET, do_normalize=False, do_pad=False
    ),
    "SegformerImageProcessor": _defaults(_square(512), _BILINEAR, _IMAGENET),
    "SiglipImageProcessor": _defaults(_square(224), _BICUBIC),
    "SuperPointImageProcessor": _defaults(
        {"height": 480, "width": 640}, do_normalize=False
    ),
    "Swin2SRImageProcessor": _defaults(
        None, do_normalize=False, do_pad=True, size_divisor=8
    ),
    "TextNetImageProcessor": _defaults(
        {"shortest_edge": 640}, _BILINEAR, _IMAGENET, size_divisor=32, do_pad=True
    ),
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
    defaults = DEFAULTS.get(processor_class(config, model_type), {})
    values = {
        **defaults,
        **{key: value for key, value in config.items() if value is not None},
    }
    if defaults:
        name = processor_class(config, model_type)
        for key, classes in _READ_BY.items():
            if name not in classes:
                values.pop(key, None)
        for key, classes in _IGNORED_BY.items():
            if name in classes:
                values.pop(key, None)
    usual_size = defaults.get("size")
    if values.pop("default_to_square", None) is False and usual_size is None:
        usual_size = {"shortest_edge": 0}
    values["size"] = _as_sides(
        values.get("size"), usual_size, values.pop("max_size", None)
    )
    values["crop_size"] = _as_sides(values.get("crop_size"), None, None)
    if processor_class(config, model_type) in _ROUNDS_UP:
        values["size_multiple_above"] = values.pop("size_divisor", None)
    for switch, keys in _SWITCHES.items():
        if not values.get(switch, switch in _ON_BY_DEFAULT):
            for key in keys:
                values.pop(key, None)
    return {key: value for key, value in values.items() if value is not None}


_READ_BY: Final[Mapping[str, tuple[str, ...]]] = {
    "rescale_offset": ("EfficientNetImageProcessor",),
    "include_top": ("EfficientNetImageProcessor",),
    "crop_pct": ("ConvNextImageProcessor", "PoolFormerImageProcessor"),
    "ensure_multiple_of": ("DPTImageProcessor",),
}
"""Keys that only these classes read; files of others may have them without effect."""

_IGNORED_BY: Final[Mapping[str, tuple[str, ...]]] = {
    "do_center_crop": (
        "ConditionalDetrImageProcessor",
        "ConvNextImageProcessor",
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
    "pad_size": (
        "BeitImageProcessor",
        "DINOv3ViTImageProcessor",
        "DPTImageProcessor",
        "EfficientNetImageProcessor",
        "OneFormerImageProcessor",
        "SegformerImageProcessor",
    ),
}
"""Keys that these classes don't read, although most others do."""

_ROUNDS_UP: Final = (
    "Mask2FormerImageProcessor",
    "MaskFormerImageProcessor",
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
    ),
    "do_center_crop": ("crop_size",),
    "do_rescale": ("rescale_factor", "rescale_offset", "offset"),
    "do_pad": ("pad_size", "size_divisor", "size_divisibility"),
    "do_color_quantize": ("clusters",),
}
"""Keys that have no effect while a switch is off."""


def _as_sides(size: object, usual: object, longest: object) -> object:
    """Return a size in its current spelling: an object with ``height`` and ``width``, or with edges.

    Old files contain a number, or a list of height and width; DETR's contain ``max_size`` beside it.

    Args:
        usual: the class's default size, whose keys decide the meaning of a number.
        longest: ``max_size``.
    """
    if isinstance(size, list | tuple) and len(size) == 2:
        return {"height": size[0], "width": size[1]}
    if isinstance(size, list | tuple) and len(size) == 1:
        size = size[0]
    if not isinstance(size, int):
        return size
    if isinstance(usual, Mapping) and "longest_edge" in usual:
        return {"shortest_edge": size, "longest_edge": longest or usual["longest_edge"]}
    if isinstance(usual, Mapping) and "shortest_edge" in usual:
        return {"shortest_edge": size}
    return {"height": size, "width": size}
