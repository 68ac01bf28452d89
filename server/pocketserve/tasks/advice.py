"""Advice for models that are served as tensors: the line of a manifest that gives them their task."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote

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
        *(
            "wav2vec2",
            "wav2vec2-bert",
            "wav2vec2-conformer",
            "hubert",
            "wavlm",
            "sew",
            "sew-d",
            "data2vec-audio",
        ),
        *("unispeech", "unispeech-sat", "whisper", "audio-spectrogram-transformer"),
    )
)
"""``model_type`` of models of sounds; their classes are called as those of texts."""

_SOUND_INPUTS = frozenset(("input_values", "input_features"))
_TOKENIZERS = ("tokenizer.json", "vocab.txt", "spiece.model")
MAX_TEXT_CLASSES, MIN_VECTOR = 50, 32


def advice_of(facts: ModelFacts, labels: Sequence[str]) -> str:
    """Return what a model without a task looks like, and the line that gives it one; empty where nothing tells.

    Args:
        labels: names of classes that were found for it.
    """
    sign, task = suggest_task(facts, labels)
    own_folder = facts.entry.folder.name == facts.entry.name
    place = (
        "model.toml"
        if own_folder
        else "a model.toml beside the file, in a folder of their own"
    )
    return (
        f'{sign} write task = "{task}" into {place}, or: pocketserve init {quote(facts.entry.name)}'
        if task
        else ""
    )


def suggest_task(facts: ModelFacts, labels: Sequence[str]) -> tuple[str, str]:
    """Return what tells a model's task, up to the advice, and the task; two empty texts where nothing does.

    Args:
        labels: names of classes that were found for it.
    """
    classes = class_count(facts)
    if takes_picture(facts) and classes >= 2:
        fault = ":"
        if labels and len(labels) != classes:
            fault = f" with {plural(len(labels), 'label')} for {classes:,} classes: complete them, or"
        return f"it looks like a picture classifier{fault}", _PICTURES
    try:
        config = facts.json_beside(CONFIG)
    except ModelLoadError:
        return "", ""
    names = config.get("architectures")
    name = (
        names[0]
        if isinstance(names, list) and names and isinstance(names[0], str)
        else ""
    )
    task = next((task for part, task in _ARCHITECTURES.items() if part in name), "")
    model_type = str(config.get("model_type"))
    takes_sound = model_type in _SOUND_TYPES or _SOUND_INPUTS & {
        spec.name for spec in facts.inputs
    }
    if takes_sound and task.endswith("-classification"):
        task = "audio-classification"
    if task:
        return f"{CONFIG} calls it {name:.60}:", task
    if facts.beside("1_Pooling/config.json") is not None:
        return "it pools tokens, as embedders of sentences do:", "text-embedding"
    outputs = {spec.name for spec in facts.outputs}
    if (
        any(facts.beside(name) is not None for name in _TOKENIZERS)
        and (sign := _sign_of_text(facts))[1]
    ):
        return f"a tokenizer lies beside it, and {sign[0]}:", sign[1]
    is_map = any(output.endswith(".keys") for output in outputs)
    if outputs >= {"label", "probabilities"} or is_map or _is_table_of_classes(facts):
        return "it answers labels with their scores:", "tabular-classification"
    return "", ""


def _is_table_of_classes(facts: ModelFacts) -> bool:
    """Return whether rows go in, and the class of each row comes out beside scores."""
    try:
        rows_of(facts, "")
    except ModelLoadError:
        return False
    return answers_classes(facts)


def _sign_of_text(facts: ModelFacts) -> tuple[str, str]:
    """Return what the outputs of a model of texts tell, and its task."""
    shapes = [spec.shape for spec in facts.outputs]
    if not (facts.inputs and shapes) or not all(
        spec.datatype in ("INT32", "INT64") for spec in facts.inputs
    ):
        return "", ""
    if len(shapes) == 2 and shapes[0] == shapes[1] == facts.inputs[0].shape:
        return (
            "it answers two numbers a token, as starts and ends of answers are",
            "question-answering",
        )
    if len(shapes[0]) == 2 and 2 <= class_count(facts) <= MAX_TEXT_CLASSES:
        return "it answers few scores", "text-classification"
    if len(shapes) == 1 and len(shapes[0]) == 3 and shapes[0][2] >= MIN_VECTOR:
        return "it answers a vector a token", "text-embedding"
    return "", ""
