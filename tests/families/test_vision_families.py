"""Compare picture answers with Hugging Face's and timm's own processors.

Each model is tiny and random, made by its library and exported to ONNX. The processors
resize with Pillow (``backend="pil"``), as the server does. BiT is left out: PyTorch's
exports of it differ from the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from conftest import Server, start_server
from families.reference import (
    LABELS,
    Family,
    ServedFamily,
    export_to_onnx,
    import_torchvision,
    open_picture,
    pictures,
)

# The libraries warn of their own deprecations.
pytestmark = [
    pytest.mark.families,
    pytest.mark.live,
    pytest.mark.filterwarnings("ignore"),
]

TRANSFORMERS = "transformers"
CLASSIFICATION = "image-classification"
DETECTION = "object-detection"
SEGMENTATION = "image-segmentation"
TINY_VIT = {
    **{
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
    },
    **{"image_size": 32, "patch_size": 8},
}
TINY_STAGES = {"hidden_sizes": [16, 24, 32, 40], "depths": [1, 1, 1, 1]}
SMALL_PICTURE = {"size": {"height": 32, "width": 32}}
SMALL_CROP = {"size": {"shortest_edge": 40}, "crop_size": {"height": 32, "width": 32}}


@dataclass(frozen=True)
class Transformers:
    """A tiny model of transformers.

    Attributes:
        config: the name of its configuration class without ``Config``.
        options: arguments of the configuration.
        processor: the class of its image processor without ``ImageProcessor``.
        processing: arguments of the processor.
        side: height and width of the picture with which it is exported.
        mask: whether it has the input ``pixel_mask``.
        fixed: whether its sizes are fixed in the export.
        dynamo: whether it needs the newer exporter.
        head: the end of the model's class, if it isn't the usual one of the task.
    """

    config: str
    options: dict[str, Any]
    processor: str
    processing: dict[str, Any] = field(default_factory=dict)
    side: int = 32
    mask: bool = False
    fixed: bool = False
    dynamo: bool = False
    head: str = ""


ROWS: dict[str, tuple[Family, Transformers]] = {}


def _row(name: str, task: str, spec: Transformers, note: str = "") -> None:
    ROWS[f"{name} {task}"] = (Family(name, TRANSFORMERS, task, note=note), spec)


def _classifier(
    name: str,
    options: dict[str, Any],
    processor: str,
    processing: dict[str, Any],
    **more: Any,
) -> None:
    _row(
        name, CLASSIFICATION, Transformers(name, options, processor, processing, **more)
    )


_classifier("ViT", TINY_VIT, "ViT", SMALL_PICTURE)
_classifier(
    "DeiT",
    TINY_VIT,
    "DeiT",
    {"size": {"height": 40, "width": 40}, "crop_size": {"height": 32, "width": 32}},
)
_classifier("Beit", TINY_VIT, "Beit", SMALL_PICTURE)
_classifier("Data2VecVision", TINY_VIT, "Beit", SMALL_PICTURE)
_classifier("ViTMSN", TINY_VIT, "ViT", SMALL_PICTURE)
_classifier("Dinov2", {**TINY_VIT, "mlp_ratio": 2}, "Bit", SMALL_CROP)
_classifier("IJepa", TINY_VIT, "ViT", SMALL_PICTURE)
_SWIN = {
    "image_size": 32,
    "patch_size": 4,
    "embed_dim": 16,
    "depths": [1, 1],
    "num_heads": [2, 2],
    "window_size": 4,
}
_classifier("Swin", _SWIN, "ViT", {**SMALL_PICTURE, "resample": 3})
_classifier("Swinv2", _SWIN, "ViT", {**SMALL_PICTURE, "resample": 3})
_classifier(
    "ConvNext", TINY_STAGES, "ConvNext", {"size": {"shortest_edge": 64}}, side=64
)
_classifier(
    "ConvNextV2",
    TINY_STAGES,
    "ConvNext",
    {"size": {"shortest_edge": 64}, "crop_pct": 0.95},
    side=64,
)
_classifier(
    "ResNet",
    {**TINY_STAGES, "embedding_size": 8},
    "ConvNext",
    {"size": {"shortest_edge": 64}},
    side=64,
)
_classifier(
    *("RegNet", {**TINY_STAGES, "embedding_size": 8, "groups_width": 8}),
    *("ConvNext", {"size": {"shortest_edge": 400}}),
    side=400,
)
_MOBILE = {"image_size": 64, "depth_multiplier": 0.25}
_MOBILE_CROP = {"size": {"shortest_edge": 72}, "crop_size": {"height": 64, "width": 64}}
_classifier("MobileNetV1", _MOBILE, "MobileNetV1", _MOBILE_CROP, side=64)
_classifier(
    "MobileNetV2",
    {**_MOBILE, "tf_padding": False},
    "MobileNetV2",
    _MOBILE_CROP,
    side=64,
)
_MOBILEVIT = {
    **{
        "image_size": 64,
        "hidden_sizes": [16, 24, 32],
        "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 48],
    },
    **{"num_attention_heads": 4, "aspp_out_channels": 16},
}
_classifier(
    "MobileViT",
    _MOBILEVIT,
    "MobileViT",
    _MOBILE_CROP,
    side=64,
    fixed=True,
)
_MOBILEVIT_V2 = {"image_size": 64, "width_multiplier": 0.25}
_classifier(
    "MobileViTV2",
    _MOBILEVIT_V2,
    "MobileViT",
    _MOBILE_CROP,
    side=64,
    fixed=True,
    dynamo=True,
)
_classifier(
    *(
        "EfficientNet",
        {
            "image_size": 64,
            "width_coefficient": 0.25,
            "depth_coefficient": 0.3,
            "hidden_dim": 320,
        },
    ),
    *("EfficientNet", {"size": {"height": 64, "width": 64}}),
    side=64,
)
_classifier(
    *(
        "Levit",
        {
            "hidden_sizes": [16, 24, 32],
            "num_attention_heads": [2, 2, 2],
            "depths": [1, 1, 1],
            "image_size": 64,
        },
    ),
    *(
        "Levit",
        {"size": {"shortest_edge": 64}, "crop_size": {"height": 64, "width": 64}},
    ),
    side=64,
    fixed=True,
)
_classifier(
    *("PoolFormer", TINY_STAGES, "PoolFormer"),
    {"size": {"shortest_edge": 64}, "crop_size": {"height": 64, "width": 64}},
    side=64,
)
_PVT = {
    **TINY_STAGES,
    "num_attention_heads": [1, 2, 2, 4],
    "hidden_sizes": [16, 24, 32, 48],
    "image_size": 64,
    "num_labels": 5,
}
_classifier(
    "Pvt", _PVT, "Pvt", {"size": {"height": 64, "width": 64}}, side=64, fixed=True
)
_classifier("PvtV2", _PVT, "Pvt", {"size": {"height": 64, "width": 64}}, side=64)
_classifier(
    *("Cvt", {"embed_dim": [16, 24, 32], "num_heads": [1, 2, 4], "depth": [1, 2, 3]}),
    *("ConvNext", {"size": {"shortest_edge": 64}}),
    side=64,
)
_classifier(
    *(
        "FocalNet",
        {"image_size": 32, "embed_dim": 16, "depths": [1, 1], "focal_levels": [1, 1]},
    ),
    *("Bit", SMALL_CROP),
)
_classifier(
    "SwiftFormer",
    {"embed_dims": [16, 24, 32, 40], "depths": [1, 1, 1, 1]},
    "ViT",
    SMALL_PICTURE,
)
_classifier(
    *(
        "Hiera",
        {
            "image_size": [64, 64],
            "embed_dim": 16,
            "depths": [1, 1, 1, 1],
            "num_heads": [1, 1, 2, 2],
        },
    ),
    *("Bit", _MOBILE_CROP),
    side=64,
    fixed=True,
)

_row(
    "DistilledDeiT",
    CLASSIFICATION,
    Transformers(
        *("DeiT", TINY_VIT, "DeiT"),
        {"size": {"height": 40, "width": 40}, "crop_size": {"height": 32, "width": 32}},
        head="ForImageClassificationWithTeacher",
    ),
)

_DETR = {
    **{"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "num_queries": 6},
    **{
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
    },
}
_BACKBONE = {
    **TINY_STAGES,
    "embedding_size": 8,
    "layer_type": "basic",
    "out_features": ["stage4"],
}
_LEVELS = {**_BACKBONE, "out_features": ["stage2", "stage3", "stage4"]}
_DEFORMABLE = {
    "decoder_layers": 2,
    "num_feature_levels": 3,
    "disable_custom_kernels": True,
}
_RT_PICTURE = {"size": {"height": 64, "width": 64}}
_DETECTOR_SIZE = {"size": {"shortest_edge": 64, "longest_edge": 120}}


def _detector(
    name: str,
    options: dict[str, Any],
    processor: str,
    processing: dict[str, Any],
    **more: Any,
) -> None:
    _row(name, DETECTION, Transformers(name, options, processor, processing, **more))


_detector(
    "Detr", {**_DETR, "backbone_config": _BACKBONE}, "Detr", _DETECTOR_SIZE, mask=True
)
_detector(
    "TableTransformer",
    {**_DETR, "backbone_config": _BACKBONE},
    "Detr",
    _DETECTOR_SIZE,
    mask=True,
)
_detector(
    "ConditionalDetr",
    {**_DETR, "backbone_config": _BACKBONE},
    "ConditionalDetr",
    _DETECTOR_SIZE,
    mask=True,
)
_detector(
    *("DeformableDetr", {**_DETR, "backbone_config": _LEVELS, **_DEFORMABLE}),
    *("DeformableDetr", _RT_PICTURE),
    side=64,
    mask=True,
    fixed=True,
    dynamo=True,
)
_detector(
    *("Yolos", {**TINY_VIT, "image_size": [64, 64], "num_detection_tokens": 6}),
    *("Yolos", {"size": {"shortest_edge": 64, "longest_edge": 128}}),
)
_RT = {
    **{
        "d_model": 32,
        "encoder_hidden_dim": 32,
        "encoder_in_channels": [20, 30, 40],
        "feat_strides": [8, 16, 32],
    },
    **{
        "decoder_in_channels": [32, 32, 32],
        "num_queries": 8,
        "decoder_layers": 2,
        "encoder_layers": 1,
    },
    **{
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
    },
    **{"hidden_expansion": 0.5},
}
_RT_BACKBONE = {
    **{"hidden_sizes": [10, 20, 30, 40], "depths": [1, 1, 2, 1], "embedding_size": 10},
    **{"out_features": ["stage2", "stage3", "stage4"]},
}
_detector(
    "RTDetr",
    {**_RT, "backbone_config": _RT_BACKBONE},
    "RTDetr",
    _RT_PICTURE,
    side=64,
    fixed=True,
)
_detector(
    "RTDetrV2",
    {**_RT, "backbone_config": _RT_BACKBONE},
    "RTDetr",
    _RT_PICTURE,
    side=64,
    fixed=True,
)
_detector(
    "DFine",
    {**_RT, "backbone_config": _RT_BACKBONE},
    "RTDetr",
    _RT_PICTURE,
    side=64,
    fixed=True,
)

_SEGFORMER = {
    **{
        "hidden_sizes": [8, 16, 24, 32],
        "depths": [1, 1, 1, 1],
        "num_attention_heads": [1, 2, 2, 4],
    },
    **{"decoder_hidden_size": 16},
}


def _segmenter(
    name: str,
    options: dict[str, Any],
    processor: str,
    processing: dict[str, Any],
    **more: Any,
) -> None:
    _row(name, SEGMENTATION, Transformers(name, options, processor, processing, **more))


_UPER_BACKBONE = {**_BACKBONE, "out_features": ["stage1", "stage2", "stage3", "stage4"]}
_SEGMENTED = {"size": {"height": 64, "width": 64}}
_segmenter("Segformer", _SEGFORMER, "Segformer", _SEGMENTED, side=64)
_segmenter(
    "MobileViT",
    _MOBILEVIT,
    "MobileViT",
    _MOBILE_CROP,
    side=64,
    fixed=True,
)
_segmenter(
    "MobileNetV2",
    {
        **_MOBILE,
        "tf_padding": False,
        "output_stride": 8,
    },
    "MobileNetV2",
    _MOBILE_CROP,
    side=64,
)
_DENSE = {
    **TINY_VIT,
    "image_size": 64,
    "num_hidden_layers": 4,
    "out_indices": [1, 2, 3, 4],
}
_segmenter(
    "Beit",
    {
        **_DENSE,
        "auxiliary_channels": 8,
        "pool_scales": [1, 2],
    },
    "Beit",
    _SEGMENTED,
    side=64,
    fixed=True,
)
_segmenter(
    "Data2VecVision",
    {
        **_DENSE,
        "auxiliary_channels": 8,
        "pool_scales": [1, 2],
    },
    "Beit",
    _SEGMENTED,
    side=64,
    fixed=True,
)
_segmenter(
    *(
        "DPT",
        {
            **_DENSE,
            "backbone_out_indices": [0, 1, 2, 3],
            "neck_hidden_sizes": [8, 8, 8, 8],
        },
    ),
    *("DPT", _SEGMENTED),
    side=64,
    fixed=True,
)
_segmenter(
    *(
        "UperNet",
        {
            "backbone_config": _UPER_BACKBONE,
            "hidden_size": 16,
            "pool_scales": [1, 2],
            "auxiliary_channels": 8,
        },
    ),
    *("Segformer", _SEGMENTED),
    side=64,
    fixed=True,
)

TIMM = {
    "resnet10t": (3, 64, 64),
    "vit_tiny_patch16_224": (3, 64, 64),
    "mobilenetv3_small_050": (3, 64, 64),
    "convnext_atto": (3, 64, 64),
}

FAMILIES = [
    *(family for family, _ in ROWS.values()),
    Family("MaskFormer", TRANSFORMERS, SEGMENTATION),
    *(Family(name, "timm", CLASSIFICATION) for name in TIMM),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the served folder, to which tests add models."""
    return tmp_path_factory.mktemp("families")


@pytest.fixture(scope="module")
def family_server(
    models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Start a server for all families."""
    import_torchvision()
    running = start_server(tmp_path_factory.mktemp("server"), models)
    yield running
    assert running.stop() == 0


def reinitialise(model: Any) -> None:
    """Draw weights that preserve signal sizes, so that answers depend on the picture."""
    import torch

    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                fan_in = parameter[0].numel()
                parameter.normal_(0, fan_in**-0.5, generator=generator)


def spread_logits(model: Any, batches: list[dict[str, Any]], class_axis: int) -> None:
    """Shift and scale logits, so that the best class depends on the picture."""
    import torch

    rows = []
    with torch.no_grad():
        for batch in batches:
            logits = torch.movedim(model(**batch).logits, class_axis, -1)
            rows.append(logits.reshape(-1, logits.shape[-1]))
    every_row = torch.cat(rows)
    mean = every_row.mean(dim=0)
    deviation = every_row.std(dim=0) + 1e-9
    plain = model.forward

    def forward(*arguments: Any, **options: Any) -> Any:
        answer = plain(*arguments, **options)
        shape = [1] * answer.logits.dim()
        shape[class_axis] = -1
        answer.logits = (
            (answer.logits - mean.reshape(shape)) / deviation.reshape(shape) * 2
        )
        return answer

    model.forward = forward


def build(spec: Transformers, task: str) -> tuple[Any, Any]:
    """Return the model and its processor."""
    import torch
    import transformers

    heads = {CLASSIFICATION: "ForImageClassification", DETECTION: "ForObjectDetection"}
    heads[SEGMENTATION] = "ForSemanticSegmentation"
    options = dict(spec.options)
    backbone = options.pop("backbone_config", None)
    if backbone is not None:
        kind = (
            "RTDetrResNet"
            if spec.config in ("RTDetr", "RTDetrV2", "DFine")
            else "ResNet"
        )
        options["backbone_config"] = getattr(transformers, f"{kind}Config")(**backbone)
    torch.manual_seed(0)
    names = dict(enumerate(LABELS))
    config = getattr(transformers, f"{spec.config}Config")(
        **options,
        id2label=names,
        label2id={name: number for number, name in names.items()},
    )
    head = spec.head or heads[task]
    model = getattr(transformers, f"{spec.config}{head}")(config)
    processor = getattr(transformers, f"{spec.processor}ImageProcessorPil")(
        **spec.processing
    )
    reinitialise(model)
    return model.eval(), processor


def write_model(
    folder: Path, spec: Transformers, model: Any, processor: Any, outputs: list[str]
) -> None:
    """Write the ONNX file and the JSON files beside it."""
    import torch

    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    processor.save_pretrained(folder)
    inputs = {"pixel_values": torch.rand(1, 3, spec.side, spec.side)}
    free = {
        0: "batch_size",
        1: "num_channels",
        2: "height",
        3: "width",
    }
    dynamic: dict[str, dict[int, str]] = {} if spec.fixed else {"pixel_values": free}
    if spec.mask:
        inputs["pixel_mask"] = torch.ones(1, spec.side, spec.side, dtype=torch.int64)
        if not spec.fixed:
            dynamic["pixel_mask"] = {
                0: "batch_size",
                1: "height",
                2: "width",
            }
    export_to_onnx(
        model, folder / "model.onnx", inputs, outputs, dynamic, dynamo=spec.dynamo
    )


def inputs_of(processor: Any, files: list[bytes]) -> list[dict[str, Any]]:
    """Return each picture's inputs from its own processor."""
    return [
        dict(processor(images=open_picture(file), return_tensors="pt"))
        for file in files
    ]


CLASSIFIERS = [
    name for name, (family, _) in ROWS.items() if family.task == CLASSIFICATION
]
DETECTORS = [name for name, (family, _) in ROWS.items() if family.task == DETECTION]
SEGMENTERS = [name for name, (family, _) in ROWS.items() if family.task == SEGMENTATION]


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_classifier_answers_as_its_pipeline(
    name: str, family_server: Server, models: Path
) -> None:
    import transformers

    family, spec = ROWS[name]
    model, processor = build(spec, CLASSIFICATION)
    files = pictures()
    spread_logits(model, inputs_of(processor, files), class_axis=1)
    served = ServedFamily(
        family_server,
        models,
        f"{family.name}-c",
        lambda folder: write_model(folder, spec, model, processor, ["logits"]),
    )
    pipeline = transformers.pipeline(
        CLASSIFICATION, model=model, image_processor=processor, device="cpu"
    )
    for file in files:
        answer = served.ask(file)
        assert answer["task"] == CLASSIFICATION
        assert_same_scores(answer["predictions"], pipeline(open_picture(file), top_k=5))


def assert_same_scores(
    ours: list[dict[str, Any]], theirs: list[dict[str, Any]]
) -> None:
    expected = {entry["label"]: entry["score"] for entry in theirs}
    scores = {entry["label"]: entry["score"] for entry in ours}
    assert scores == pytest.approx(expected, abs=1e-4)
    assert ours[0]["label"] == theirs[0]["label"]


@pytest.mark.parametrize("name", DETECTORS)
def test_a_detector_answers_as_its_processor(
    name: str, family_server: Server, models: Path
) -> None:
    """The exported file runs on the processor's input, since some exports differ from
    PyTorch.
    """
    family, spec = ROWS[name]
    model, processor = build(spec, DETECTION)
    files = pictures()
    batches = inputs_of(processor, files)
    spread_logits(model, batches, class_axis=2)
    outputs = ["logits", "pred_boxes"]
    served = ServedFamily(
        family_server,
        models,
        f"{family.name}-d",
        lambda folder: write_model(folder, spec, model, processor, outputs),
    )
    for file, batch in zip(files, batches, strict=True):
        answer = served.ask(file, threshold=0.3)
        assert answer["task"] == DETECTION
        size = open_picture(file).size
        expected = detect(models / served.name / "model.onnx", batch, processor, size)
        assert len(expected) > 0
        assert_same_boxes(answer["predictions"], expected, size)


def detect(
    path: Path, batch: dict[str, Any], processor: Any, size: tuple[int, int]
) -> list[tuple[Any, ...]]:
    """Return rows (label, score, left, top, right, bottom) from the processor."""
    import onnxruntime
    import torch

    session = onnxruntime.InferenceSession(str(path))
    feed = {spec.name: batch[spec.name].numpy() for spec in session.get_inputs()}
    logits, boxes = (
        torch.from_numpy(array) for array in session.run(["logits", "pred_boxes"], feed)
    )
    raw = SimpleNamespace(logits=logits, pred_boxes=boxes)
    (found,) = processor.post_process_object_detection(
        raw, threshold=0.3, target_sizes=[(size[1], size[0])]
    )
    rows = zip(
        found["labels"].tolist(),
        found["scores"].tolist(),
        found["boxes"].tolist(),
        strict=True,
    )
    return [(LABELS[label], score, *box) for label, score, box in rows]


def assert_same_boxes(
    ours: list[dict[str, Any]], theirs: list[tuple[Any, ...]], size: tuple[int, int]
) -> None:
    """Compare boxes by label and score, clipped at the edges like the server's."""
    answered = []
    for entry in ours:
        box = entry["box"]
        corners = (
            box["x"],
            box["y"],
            box["x"] + box["width"],
            box["y"] + box["height"],
        )
        answered.append(
            (
                entry["label"],
                entry["score"],
                *corners,
            )
        )
    for label, score, *corners in theirs:
        left, right = np.clip([corners[0], corners[2]], 0, size[0])
        top, bottom = np.clip([corners[1], corners[3]], 0, size[1])
        if right - left < 1 or bottom - top < 1:
            continue  # the server omits boxes outside the picture
        similar = [
            row for row in answered if row[0] == label and abs(row[1] - score) < 1e-4
        ]
        differences = [
            np.abs(np.subtract(row[2:], (left, top, right, bottom))).max()
            for row in similar
        ]
        assert differences, f"{label} {score} is missing in {answered}"
        assert min(differences) < 1


@pytest.mark.parametrize("name", SEGMENTERS)
def test_a_segmenter_answers_as_its_processor(
    name: str, family_server: Server, models: Path
) -> None:
    import torch

    family, spec = ROWS[name]
    model, processor = build(spec, SEGMENTATION)
    files = pictures()
    batches = inputs_of(processor, files)
    spread_logits(model, batches, class_axis=1)
    served = ServedFamily(
        family_server,
        models,
        f"{family.name}-s",
        lambda folder: write_model(folder, spec, model, processor, ["logits"]),
    )
    for file, batch in zip(files, batches, strict=True):
        with torch.no_grad():
            logits = model(**batch).logits[0].numpy()
        classes = logits.argmax(axis=0)
        answer = served.ask(file)
        assert answer["task"] == SEGMENTATION
        shares = {entry["label"]: entry["share"] for entry in answer["predictions"]}
        assert shares == pytest.approx(shares_of(classes), abs=2 / classes.size)


def test_maskformer_answers_as_its_processor(
    family_server: Server, models: Path
) -> None:
    """Sides of a free size are rounded up to a multiple."""
    import onnxruntime
    import torch
    import transformers

    model = maskformer()
    processor = transformers.MaskFormerImageProcessorPil(
        size={"shortest_edge": 48, "longest_edge": 120}, size_divisor=32
    )
    outputs = ["class_queries_logits", "masks_queries_logits"]

    def write(folder: Path) -> None:
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(folder)
        processor.save_pretrained(folder)
        free = {
            0: "batch_size",
            1: "num_channels",
            2: "height",
            3: "width",
        }
        axes = {"pixel_values": free, outputs[1]: {2: "rows", 3: "columns"}}
        inputs = {"pixel_values": torch.rand(1, 3, 64, 96)}
        export_to_onnx(model, folder / "model.onnx", inputs, outputs, axes)

    served = ServedFamily(family_server, models, "maskformer", write)
    path = models / served.name / "model.onnx"
    session = onnxruntime.InferenceSession(str(path))
    labels = set()
    for file in pictures():
        (batch,) = inputs_of(processor, [file])
        values = session.run(outputs, {"pixel_values": batch["pixel_values"].numpy()})
        classes = classes_of(processor, dict(zip(outputs, values, strict=True)))
        predictions = served.ask(file)["predictions"]
        shares = {entry["label"]: entry["share"] for entry in predictions}
        assert shares == pytest.approx(shares_of(classes), abs=6 / classes.size)
        labels |= set(shares)
    assert len(labels) > 1


def classes_of(processor: Any, outputs: dict[str, Any]) -> Any:
    """Return each pixel's class from a processor."""
    import torch

    tensors = {name: torch.from_numpy(values) for name, values in outputs.items()}
    raw = SimpleNamespace(**tensors)
    (classes,) = processor.post_process_semantic_segmentation(raw)
    return classes.numpy()


def shares_of(classes: Any) -> dict[str, float]:
    """Return each label's share of the pixels."""
    numbers = np.unique(classes)
    return {LABELS[number]: float((classes == number).mean()) for number in numbers}


def maskformer() -> Any:
    """Return a tiny MaskFormer whose best class depends on the picture."""
    import torch
    import transformers

    torch.manual_seed(0)
    stages = ["stage1", "stage2", "stage3", "stage4"]
    swin = transformers.SwinConfig(
        image_size=64,
        embed_dim=16,
        depths=[1, 1, 1, 1],
        num_heads=[1, 1, 2, 2],
        window_size=4,
        out_features=stages,
    )
    detr = transformers.DetrConfig(
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        num_queries=6,
    )
    names = dict(enumerate(LABELS))
    config = transformers.MaskFormerConfig(
        backbone_config=swin,
        decoder_config=detr,
        fpn_feature_size=32,
        mask_feature_size=32,
        id2label=names,
        label2id={name: number for number, name in names.items()},
    )
    model = transformers.MaskFormerForInstanceSegmentation(config).eval()
    reinitialise(model)
    with torch.no_grad():
        model.model.transformer_module.queries_embedder.weight.mul_(30)
        model.class_predictor.weight.mul_(15)
        logits = model(pixel_values=torch.rand(1, 3, 64, 96)).class_queries_logits
        model.class_predictor.bias.sub_(logits[0].mean(dim=0))
    return model


def spread_module(model: Any, mean: Any, deviation: Any) -> Any:
    """Return a module that shifts and scales the model's logits."""
    import torch

    class Spread(torch.nn.Module):  # type: ignore[misc]  # PyTorch is not typed here
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Any) -> Any:
            return (self.inner(x) - mean) / deviation

    return Spread()


def build_timm(name: str) -> tuple[Any, dict[str, Any]]:
    """Return a random model of timm, and its data configuration."""
    import timm

    options = {}
    if name.startswith("vit"):
        options = {"img_size": 64}
    model = timm.create_model(
        name, pretrained=False, num_classes=len(LABELS), **options
    ).eval()
    reinitialise(model)
    data = timm.data.resolve_data_config({"input_size": TIMM[name]}, model=model)
    return model, data


@pytest.mark.parametrize("name", TIMM)
def test_a_timm_classifier_answers_as_its_transform(
    name: str, family_server: Server, models: Path
) -> None:
    import timm
    import torch
    from timm.models import save_for_hf

    torch.manual_seed(0)
    model, data = build_timm(name)
    transform = timm.data.create_transform(**data)
    files = pictures()
    with torch.no_grad():
        batch = torch.stack([transform(open_picture(file)) for file in files])
        logits = model(batch)
    mean = logits.mean(dim=0)
    deviation = logits.std(dim=0) + 1e-9

    def write(folder: Path) -> None:
        config = {"label_names": list(LABELS), "pretrained_cfg": data}
        save_for_hf(model, folder, model_config=config)
        for weights in (*folder.glob("*.safetensors"), *folder.glob("*.bin")):
            weights.unlink()
        module = spread_module(model, mean, deviation)
        example = {"x": torch.rand(1, *TIMM[name])}
        free = {"x": {0: "batch"}}
        export_to_onnx(module, folder / "model.onnx", example, ["logits"], free)

    served = ServedFamily(family_server, models, f"timm-{name}", write)
    scores = torch.softmax((logits - mean) / deviation, dim=1).numpy()
    for file, row in zip(files, scores, strict=True):
        answer = served.ask(file)
        assert answer["task"] == CLASSIFICATION
        assert_same_scores(answer["predictions"], ranked_labels(row))


def ranked_labels(scores: Any) -> list[dict[str, Any]]:
    """Return each label with its score, best first."""
    ranked = []
    for number in np.argsort(-scores):
        ranked.append({"label": LABELS[number], "score": float(scores[number])})
    return ranked
