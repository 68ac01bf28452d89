"""Which task a model has: the manifest decides, else what a TFLite file says of itself, else plain tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pocketserve.repository.manifest import ImageOptions, Manifest
from pocketserve.repository.scan import ModelEntry, VersionEntry
from pocketserve.runtimes import tflite_metadata
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.flatbuffer import DamagedFileError
from pocketserve.runtimes.tflite_metadata import ModelMetadata
from pocketserve.tasks.base import Task
from pocketserve.tasks.image_classification import ImageClassification, picture_shape
from pocketserve.tasks.labels import read_labels
from pocketserve.tasks.tabular_regression import TabularRegression
from pocketserve.tasks.tensors import Tensors
from pocketserve.tensors import TensorSpec


def select_task(
    entry: ModelEntry,
    version: VersionEntry,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    max_image_pixels: int,
) -> Task:
    """Choose and set up a version's task.

    Raises:
        ModelLoadError: the manifest names a task that does not fit the model's tensors.
    """
    metadata = _metadata(version)
    task = entry.manifest.task or _task_of_metadata(metadata, inputs, outputs)
    if task == "image-classification":
        return _image_classification(entry, version, metadata, inputs, outputs, max_image_pixels)
    if task == "tabular-regression":
        return _tabular_regression(entry.manifest, inputs, outputs)
    return Tensors(inputs)


def _metadata(version: VersionEntry) -> ModelMetadata | None:
    if version.kind.name != "tflite":
        return None
    try:
        return tflite_metadata.read_metadata(version.path)
    except DamagedFileError:
        return None  # the model runs without it; `inspect` says what is wrong with it


def _task_of_metadata(
    metadata: ModelMetadata | None, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> str | None:
    """A picture in and one labelled row of scores out is a classifier; anything less certain is not guessed."""
    if metadata is None or len(inputs) != 1 or len(outputs) != 1 or len(metadata.inputs) != 1:
        return None
    content = metadata.inputs[0].content
    is_picture = content is not None and content.kind == "image"
    is_row = len(outputs[0].shape) == 2 and bool(metadata.outputs) and bool(metadata.outputs[0].associated_files)
    return "image-classification" if is_picture and is_row else None


def _image_classification(
    entry: ModelEntry,
    version: VersionEntry,
    metadata: ModelMetadata | None,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    max_image_pixels: int,
) -> ImageClassification:
    spec, output = _single(inputs, "input", entry), outputs[0]
    try:
        shape, _ = picture_shape(spec)
    except ValueError as error:
        raise ModelLoadError(f"model.toml: task image-classification does not fit: {error}") from None
    options = _image_options(entry.manifest.image, metadata)
    for numbers, key in ((options.mean, "mean"), (options.std, "std")):
        if numbers is not None and len(numbers) not in (1, shape.channels):
            raise ModelLoadError(f"image.{key} has {len(numbers)} numbers, the picture has {shape.channels} channels")
    wanted = {"rgb": 3, "grayscale": 1}.get(options.color or "", shape.channels)
    if wanted != shape.channels:
        raise ModelLoadError(f"model.toml: image.color is {options.color}, but the input has {shape.channels} channels")
    return ImageClassification(spec, output, _labels(entry, version, metadata), options, max_image_pixels)


def _image_options(declared: ImageOptions, metadata: ModelMetadata | None) -> ImageOptions:
    """The manifest's options, completed by the file's own normalisation."""
    normalization = metadata.inputs[0].normalization if metadata is not None and metadata.inputs else None
    if normalization is None:
        return declared
    return dataclasses.replace(
        declared, mean=declared.mean or normalization.mean, std=declared.std or normalization.std
    )


def _labels(entry: ModelEntry, version: VersionEntry, metadata: ModelMetadata | None) -> list[str]:
    if entry.manifest.labels is not None:
        return read_labels(entry.folder, entry.manifest.labels)
    if metadata is None or not metadata.outputs:
        return []
    try:
        return tflite_metadata.labels_of(version.path, metadata.outputs[0]) or []
    except DamagedFileError:
        return []


def _tabular_regression(
    manifest: Manifest, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> TabularRegression:
    if len(inputs) != 1 or len(outputs) != 1 or len(inputs[0].shape) != 2:
        raise ModelLoadError(
            "model.toml: task tabular-regression needs one input of shape [rows, features], one output"
        )
    width = inputs[0].shape[1]
    if manifest.feature_names and width not in (-1, len(manifest.feature_names)):
        raise ModelLoadError(f"model.toml: features.names has {len(manifest.feature_names)}, the model takes {width}")
    return TabularRegression(
        inputs[0], manifest.feature_names, manifest.target_name or outputs[0].name, manifest.target_unit
    )


def _single(specs: Sequence[TensorSpec], what: str, entry: ModelEntry) -> TensorSpec:
    if len(specs) != 1:
        raise ModelLoadError(f"model.toml: task {entry.manifest.task} needs one {what}, the model has {len(specs)}")
    return specs[0]
