"""Suggest tasks for models that are served as tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any, NamedTuple

from pocketserve.messages import plural
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.model_facts import CONFIG, ModelFacts
from pocketserve.tasks.tabular.class_targets import answers_classes
from pocketserve.tasks.tabular.tables import rows_of
from pocketserve.tasks.vision.image_classification import class_count
from pocketserve.tasks.vision.picture_input import takes_picture

_PICTURES = "image-classification"
_ARCHITECTURES = {
    "ForSequenceClassification": "text-classification",
    "ForQuestionAnswering": "question-answering",
    "ForImageClassification": "image-classification",
    "ForObjectDetection": "object-detection",
    "ForSemanticSegmentation": "image-segmentation",
    "ForAudioClassification": "audio-classification",
}
"""Tasks by a part of the class name, which may end in ``WithTeacher``."""

_SOUND_TYPES = frozenset(
    (
        "wav2vec2",
        "wav2vec2-bert",
        "wav2vec2-conformer",
        "hubert",
        "wavlm",
        "sew",
        "sew-d",
        "data2vec-audio",
        "unispeech",
        "unispeech-sat",
        "whisper",
        "audio-spectrogram-transformer",
    )
)
"""``model_type`` of sound models; their class names are like those of text models."""

_SOUND_INPUTS = frozenset(("input_values", "input_features"))
_TOKENIZERS = ("tokenizer.json", "vocab.txt", "spiece.model")
MAX_TEXT_CLASSES, MIN_VECTOR = 50, 32


def advice_of(facts: ModelFacts, labels: Sequence[str]) -> str:
    """Describe how to set a model's task, or return "".

    Args:
        labels: class names found for it.
    """
    suggestion = suggest_task(facts, labels)
    if not suggestion.task:
        return ""
    file = "a model.toml beside the file, in a folder of their own"
    if facts.entry.folder.name == facts.entry.name:
        file = "model.toml"
    return (
        f'{suggestion.sign} write task = "{suggestion.task}" into {file}, or: '
        f"pocketserve init {quote(facts.entry.name)}"
    )


class SuggestedTask(NamedTuple):
    """A task, and the sign of it: the start of the advice."""

    sign: str
    task: str


NO_SUGGESTION = SuggestedTask("", "")


def suggest_task(facts: ModelFacts, labels: Sequence[str]) -> SuggestedTask:
    """Suggest a model's task, or none if its files don't show it.

    Args:
        labels: class names found for it.
    """
    classes = class_count(facts)
    if takes_picture(facts) and classes >= 2:
        return _picture_classifier(classes, labels)
    try:
        config = facts.json_beside(CONFIG)
    except ModelLoadError:
        return NO_SUGGESTION
    name = _architecture(config)
    task = _task_of_architecture(facts, config, name)
    if task:
        return SuggestedTask(f"{CONFIG} calls it {name:.60}:", task)
    if facts.beside("1_Pooling/config.json") is not None:
        return SuggestedTask(
            "it pools tokens, as embedders of sentences do:",
            "text-embedding",
        )
    if any(facts.beside(file) is not None for file in _TOKENIZERS):
        suggestion = _text_task(facts)
        if suggestion.task:
            return suggestion
    if _answers_label_maps(facts) or _is_table_of_classes(facts):
        return SuggestedTask(
            "it returns labels with their scores:",
            "tabular-classification",
        )
    return NO_SUGGESTION


def _picture_classifier(classes: int, labels: Sequence[str]) -> SuggestedTask:
    """Suggest a picture's classification; name missing labels."""
    fault = ":"
    if labels and len(labels) != classes:
        count = plural(len(labels), "label")
        fault = f" with {count} for {classes:,} classes: complete them, or"
    return SuggestedTask(f"it looks like a picture classifier{fault}", _PICTURES)


def certain_task(facts: ModelFacts) -> str:
    """Return the task of a model that its ``config.json`` describes; empty if none.

    Beside other formats the file may belong to the model that this one was made from.
    """
    if not facts.version.format.has_config:
        return ""
    try:
        config = facts.json_beside(CONFIG)
    except ModelLoadError:
        return ""
    task = _task_of_architecture(facts, config, _architecture(config))
    if not task and facts.beside("1_Pooling/config.json") is not None:
        return "text-embedding"
    return task


def _architecture(config: Mapping[str, Any]) -> str:
    """Return the first class name in ``config.json``."""
    names = config.get("architectures")
    if isinstance(names, list) and names and isinstance(names[0], str):
        return names[0]
    return ""


def _task_of_architecture(
    facts: ModelFacts, config: Mapping[str, Any], name: str
) -> str:
    for part, task in _ARCHITECTURES.items():
        if part not in name:
            continue
        input_names = {spec.name for spec in facts.inputs}
        is_sound_type = str(config.get("model_type")) in _SOUND_TYPES
        takes_sound = is_sound_type or bool(_SOUND_INPUTS & input_names)
        if takes_sound and task.endswith("-classification"):
            return "audio-classification"
        return task
    return ""


def _answers_label_maps(facts: ModelFacts) -> bool:
    names = {spec.name for spec in facts.outputs}
    if names >= {"label", "probabilities"}:
        return True
    return any(name.endswith(".keys") for name in names)


def _is_table_of_classes(facts: ModelFacts) -> bool:
    """Return whether the model classifies rows."""
    try:
        rows_of(facts, "")
    except ModelLoadError:
        return False
    return answers_classes(facts)


def _text_task(facts: ModelFacts) -> SuggestedTask:
    """Suggest the task of a text model by its outputs."""
    shapes = [spec.shape for spec in facts.outputs]
    if not facts.inputs or not shapes:
        return NO_SUGGESTION
    if any(spec.datatype not in ("INT32", "INT64") for spec in facts.inputs):
        return NO_SUGGESTION
    first = shapes[0]
    if len(shapes) == 2 and first == shapes[1] == facts.inputs[0].shape:
        return _suggest_text_task(
            "it returns two numbers for each token, such as starts and ends of answers",
            "question-answering",
        )
    if len(first) == 2 and 2 <= class_count(facts) <= MAX_TEXT_CLASSES:
        return _suggest_text_task("it returns few scores", "text-classification")
    if len(shapes) == 1 and len(first) == 3 and first[2] >= MIN_VECTOR:
        return _suggest_text_task(
            "it returns a vector for each token", "text-embedding"
        )
    return NO_SUGGESTION


def _suggest_text_task(sign: str, task: str) -> SuggestedTask:
    return SuggestedTask(f"a tokenizer lies beside it, and {sign}:", task)
