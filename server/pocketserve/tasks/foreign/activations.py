"""The activation that a classifier's configuration files ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pocketserve.tasks.model_facts import CONFIG, MetadataError, ModelFacts
from pocketserve.tasks.scores import ACTIVATIONS

SENTENCE_CONFIG = "config_sentence_transformers.json"
DEFAULT_LABELS = 2  # of a transformers model whose configuration names none
_PROBLEMS = {
    "regression": "none",
    "multi_label_classification": "sigmoid",
}
_TORCH = {
    "Identity": "none",
    "Sigmoid": "sigmoid",
}
"""Classes of ``torch.nn`` by name."""


def configured_activation(facts: ModelFacts, task: str, classes: int) -> str:
    """Return the activation of a Hugging Face classifier; ``none`` for other models.

    The order is that of the libraries: a function that the author chose, then ``problem_type``, then the number of
    logits, of which a single one gets a sigmoid.

    Args:
        classes: the number of logits, or of labels if the output's shape is not fixed; 0 if neither is known.

    Raises:
        MetadataError: the files ask for an activation that is not supported.
    """
    if _is_yolov5(facts):
        return "softmax"  # its export gives logits
    config = facts.json_beside(CONFIG)
    if not config or not _is_classifier(config):
        return "none"
    function = _of_cross_encoder(facts, config) or _function_to_apply(config, task)
    if function:
        return function
    problem = config.get("problem_type")
    if isinstance(problem, str) and problem in _PROBLEMS:
        return _PROBLEMS[problem]
    count = classes or _label_count(config)
    return "sigmoid" if count == 1 else "softmax"


def _is_yolov5(facts: ModelFacts) -> bool:
    if not facts.properties:
        return False
    from pocketserve.tasks.foreign.exports.ultralytics import (
        is_yolov5_metadata,  # late: few models have properties
    )

    return is_yolov5_metadata(facts.properties)


def _is_classifier(config: Mapping[str, Any]) -> bool:
    """Return whether a model gives logits that the libraries turn into scores.

    A file of transformers may name no architecture; its pipelines then go by ``model_type``. Distilled models end in
    ``ForImageClassificationWithTeacher``.
    """
    from pocketserve.tasks.foreign.timm_config import (
        timm_settings,  # late: few models have the file
    )

    if timm_settings(config):
        return True
    architectures = config.get("architectures")
    if not architectures:
        return isinstance(config.get("model_type"), str)
    first = architectures[0] if isinstance(architectures, list) else ""
    return isinstance(first, str) and "Classification" in first


def _of_cross_encoder(facts: ModelFacts, config: Mapping[str, Any]) -> str:
    """Return the activation that sentence-transformers' CrossEncoder wrote; empty if there is none."""
    section = config.get("sentence_transformers")
    places = [
        (
            f"{CONFIG}: sentence_transformers.activation_fn",
            section.get("activation_fn") if isinstance(section, dict) else None,
        ),
        (
            f"{CONFIG}: sbert_ce_default_activation_function",
            config.get("sbert_ce_default_activation_function"),
        ),
        (
            f"{SENTENCE_CONFIG}: activation_fn",
            facts.json_beside(SENTENCE_CONFIG).get("activation_fn"),
        ),
    ]
    for key, value in places:
        if value is None:
            continue
        name = (
            value.rpartition(".")[2]
            if isinstance(value, str) and value.startswith("torch.")
            else ""
        )
        if name not in _TORCH:
            raise _unsupported(key, value)
        return _TORCH[name]
    return ""


def _function_to_apply(config: Mapping[str, Any], task: str) -> str:
    """Return the ``function_to_apply`` of transformers' pipelines; empty if there is none."""
    specific = config.get("task_specific_params")
    of_task = specific.get(task) if isinstance(specific, dict) else None
    value = of_task.get("function_to_apply") if isinstance(of_task, dict) else None
    value = config.get("function_to_apply") if value is None else value
    if value is None or value == "default":
        return ""
    if value not in ACTIVATIONS:
        raise _unsupported(f"{CONFIG}: function_to_apply", value)
    return str(value)


def _label_count(config: Mapping[str, Any]) -> int:
    names = config.get("id2label")
    if isinstance(names, dict) and names:
        return len(names)
    count = config.get("num_labels")
    return count if type(count) is int and count > 0 else DEFAULT_LABELS


def _unsupported(key: str, value: object) -> MetadataError:
    choices = ", ".join(ACTIVATIONS)
    return MetadataError(
        f"{key} = {str(value)!r:.80} is not supported; set activation in [classification] of model.toml to one of "
        f"{choices}"
    )
