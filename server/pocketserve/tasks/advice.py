"""Advice for models that are served as tensors: the line of a manifest that gives them their task."""

from __future__ import annotations

from collections.abc import Sequence

from pocketserve.messages import plural
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.model_facts import CONFIG, ModelFacts
from pocketserve.tasks.vision.image_classification import class_count
from pocketserve.tasks.vision.picture_input import takes_picture

_ARCHITECTURES = {
    "ForSequenceClassification": "text-classification",
    "ForQuestionAnswering": "question-answering",
    "ForImageClassification": "image-classification",
    "ForObjectDetection": "object-detection",
    "ForSemanticSegmentation": "image-segmentation",
    "ForAudioClassification": "audio-classification",
}
"""Tasks by how Hugging Face calls a model's class."""


def advice_of(facts: ModelFacts, labels: Sequence[str]) -> str:
    """Return what a model without a task looks like, and the line that gives it one; empty where nothing tells.

    Args:
        labels: names of classes that were found for it.
    """
    sign, task = _sign(facts, labels)
    own_folder = facts.entry.folder.name == facts.entry.name
    place = "model.toml" if own_folder else "a model.toml beside the file, in a folder of their own"
    return f'{sign} write task = "{task}" into {place}' if task else ""


def _sign(facts: ModelFacts, labels: Sequence[str]) -> tuple[str, str]:
    """Return what tells a model's task, up to the advice, and the task; two empty texts where nothing does."""
    if takes_picture(facts) and (classes := class_count(facts)) >= 2:
        fault = f" with {plural(len(labels), 'label')} for {classes:,} classes: complete them, or" if labels else ":"
        return f"it looks like a picture classifier{fault}", "image-classification"
    try:
        names = facts.json_beside(CONFIG).get("architectures")
    except ModelLoadError:
        return "", ""
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    task = next((task for end, task in _ARCHITECTURES.items() if name.endswith(end)), "")
    if task:
        return f"{CONFIG} calls it {name:.60}:", task
    if facts.beside("1_Pooling/config.json") is not None:
        return "it pools tokens, as embedders of sentences do:", "text-embedding"
    outputs = {spec.name for spec in facts.outputs}
    if outputs >= {"label", "probabilities"} or any(output.endswith(".keys") for output in outputs):
        return "it answers labels with their probabilities:", "tabular-classification"
    return "", ""
