"""Make tiny text and sound models with their own libraries.

Frameworks are imported inside functions: ``tools/family_table.py`` reads the rows
without them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TRANSFORMERS = "transformers"
SENTENCES = "sentence-transformers"

CORPUS = (
    "the film was good and the song was great",
    "a bad song in a great house by the water",
    "who was it that did not like the bird",
    "anna lives in oslo and ben likes tea",
    "Paris is the capital of France, isn't it?",
    "unbelievable: nothing works, and nobody knows why!",
)

TEXTS = (
    "the film was good",
    "Anna lives in Paris; Ben doesn't.",
    "  unbelievable   HOUSE by the Water?! ",
    "xyz 123 日本 café naïve",
    " ".join(["a great song and a bad bird"] * 60),
)
"""The last text exceeds each model's length."""

PAIRS = (
    ("the film was good", "a bad song"),
    ("who was it", "Anna lives in Oslo; Ben doesn't."),
    ("xyz", "日本 café"),
    (" ".join(["a great song"] * 60), "the bird"),
    (" ".join(["a great song"] * 41), " ".join(["the bird and the house"] * 41)),
)

LENGTH = 40  # positions of the models that have a limit


@dataclass(frozen=True)
class Family:
    """A family of models; one row of the table in ``docs/generated/families.md``.

    Attributes:
        name: the name that its library gives it.
        library: the library that builds and reads the model.
        task: the server's task for it.
        formats: the model formats in which it is compared.
        note: a limit that users should know.
    """

    name: str
    library: str
    task: str
    formats: tuple[str, ...] = ("ONNX",)
    note: str = ""


@dataclass(frozen=True)
class TextModel:
    """A tiny random text classifier of transformers.

    Attributes:
        config: the name of its configuration class without ``Config``.
        tokenizer: the name of its tokenizer's class without ``Tokenizer``.
        kind: the algorithm of the tokenizer: ``wordpiece``, ``bpe`` or ``unigram``.
        options: arguments of the configuration.
        pairs: whether pairs are compared too.
        types: whether the model has token types as an input.
        tokenizing: arguments of the tokenizer.
        length: the maximum number of tokens.
        fixed: whether the export takes exactly that many tokens, because the library can't
        export it otherwise.
        edits: keys that are changed in ``tokenizer_config.json`` afterwards, so that
        ``tokenizer.json`` differs.
    """

    config: str
    tokenizer: str
    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)
    pairs: bool = True
    types: bool = True
    tokenizing: Mapping[str, Any] = field(default_factory=dict)
    length: int = LENGTH
    fixed: bool = False
    edits: Mapping[str, Any] = field(default_factory=dict)


def import_torchvision() -> None:
    """Import torchvision, a dependency of transformers.

    Its compiled operators may belong to another PyTorch.
    """
    import torch

    try:
        import torchvision
    except RuntimeError:
        for operator in ("nms", "qnms"):
            torch.library.define(
                f"torchvision::{operator}",
                "(Tensor boxes, Tensor scores, float threshold) -> Tensor",
            )
        import torchvision  # noqa: F401


def train(kind: str, special: Sequence[str]) -> Any:
    """Return a tokenizer of the library, trained on the corpus."""
    import tokenizers
    from tokenizers import models, normalizers, pre_tokenizers, trainers

    if kind == "wordpiece":
        tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token=special[0]))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer: Any = trainers.WordPieceTrainer(
            vocab_size=150, special_tokens=list(special)
        )
    elif kind == "bpe":
        tokenizer = tokenizers.Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=330, special_tokens=list(special), initial_alphabet=alphabet
        )
    else:
        tokenizer = tokenizers.Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=120, special_tokens=list(special), unk_token=special[0]
        )
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    return tokenizer


SPECIAL = {
    "Roberta": ("<unk>", "<pad>", "<s>", "</s>", "<mask>"),
    "MPNet": ("[UNK]", "<pad>", "<s>", "</s>", "<mask>"),
    "Albert": ("<unk>", "<pad>", "[CLS]", "[SEP]", "[MASK]"),
    "BigBird": ("<unk>", "<pad>", "<s>", "</s>", "[CLS]", "[SEP]", "[MASK]"),
    "XLNet": ("<unk>", "<pad>", "<s>", "</s>", "<sep>", "<cls>", "<mask>"),
    "XLMRoberta": ("<unk>", "<pad>", "<s>", "</s>", "<mask>"),
    "Camembert": ("<unk>", "<pad>", "<s>", "</s>", "<mask>"),
    "T5": ("<unk>", "<pad>", "</s>"),
    "Funnel": ("<unk>", "<pad>", "<sep>", "<cls>", "<mask>", "<s>", "</s>"),
    "GPT2": ("<|endoftext|>", "<pad>"),
}
BERT_SPECIAL = ("[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]")


def make_tokenizer(spec: TextModel) -> Any:
    """Return the model's own tokenizer over a trained vocabulary."""
    import transformers

    trained = train(spec.kind, SPECIAL.get(spec.tokenizer, BERT_SPECIAL))
    model = json.loads(trained.to_str())["model"]
    arguments = dict(spec.tokenizing)
    if spec.kind == "unigram":
        arguments["vocab"] = [tuple(pair) for pair in model["vocab"]]
    else:
        arguments["vocab"] = model["vocab"]
    if spec.kind == "bpe":
        arguments["merges"] = [tuple(merge) for merge in model["merges"]]
    return getattr(transformers, f"{spec.tokenizer}Tokenizer")(**arguments)


def config_of(spec: TextModel, tokenizer: Any, **more: Any) -> Any:
    """Return the model's configuration, with the tokenizer's padding."""
    import transformers

    options = {
        "vocab_size": len(tokenizer) + 2,
        "pad_token_id": tokenizer.pad_token_id,
        **spec.options,
        **more,
    }
    return getattr(transformers, f"{spec.config}Config")(**options)


def export(
    model: Any,
    inputs: Mapping[str, Any],
    outputs: Sequence[str],
    path: Path,
    *,
    fixed: bool = False,
) -> None:
    """Export a model to ONNX with open batch and length, or with the examples' shapes.

    Args:
        inputs: examples by name.
        outputs: names of the model's outputs.
    """
    import torch

    class Wrapper(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *values: Any) -> Any:
            arguments = dict(zip(inputs, values, strict=True))
            answer = self.model(**arguments)
            return tuple(answer[name] for name in outputs)

    axes = {name: {0: "batch", 1: "length"} for name in inputs}
    torch.onnx.export(
        Wrapper().eval(),
        tuple(inputs.values()),
        str(path),
        input_names=list(inputs),
        output_names=list(outputs),
        dynamic_axes={}
        if fixed
        else {**axes, **{name: {0: "batch"} for name in outputs}},
        opset_version=17,
        dynamo=False,
    )


def write_classifier(spec: TextModel, folder: Path, **more: Any) -> Any:
    """Write a tiny classifier with its files; return the library's pipeline."""
    import torch
    import transformers

    import_torchvision()
    torch.manual_seed(0)
    tokenizer = make_tokenizer(spec)
    config = config_of(spec, tokenizer, **more)
    model = transformers.AutoModelForSequenceClassification.from_config(
        config, attn_implementation="eager"
    ).eval()
    spread(model)
    folder.mkdir(parents=True)
    tokenizer.save_pretrained(folder)
    settings = folder / "tokenizer_config.json"
    content = json.loads(settings.read_text(encoding="utf-8"))
    settings.write_text(json.dumps({**content, **spec.edits}), encoding="utf-8")
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    texts = (TEXTS[0], PAIRS[0][1]) if spec.pairs else (TEXTS[0],)
    filling = (
        {"padding": "max_length", "max_length": spec.length}
        if spec.fixed
        else {"max_length": LENGTH}
    )
    example = tokenizer(*texts, return_tensors="pt", truncation=True, **filling)
    names = [name for name in example if spec.types or name != "token_type_ids"]
    inputs = {name: example[name] for name in names}
    export(model, inputs, ["logits"], folder / "model.onnx", fixed=spec.fixed)
    (folder / "model.toml").write_text('task = "text-classification"\n')
    # The folder is loaded the way a user would.
    loaded = transformers.AutoTokenizer.from_pretrained(folder)
    return transformers.pipeline(
        "text-classification", model=model, tokenizer=loaded, device="cpu"
    )


def spread(model: Any) -> None:
    """Enlarge the weights, so that different texts get different answers."""
    import torch

    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1 and "conv" not in name:
                weight.mul_(4)


class Served:
    """A model folder, served in this process."""

    def __init__(self, models: Path, state: Path) -> None:
        from pocketserve.config import load_config
        from pocketserve.service import Service

        self._service = Service(
            load_config(
                {
                    "models_dir": models,
                    "state_dir": state,
                    "request_timeout": 600,
                },
                environ={},
            )
        )

    def ask(self, name: str, content: Any, **query: Any) -> list[dict[str, Any]]:
        """Return the predictions for JSON or raw bytes."""
        from pocketserve.api import predictions
        from pocketserve.api.messages import ApiRequest

        is_raw = isinstance(content, bytes)
        body = content if is_raw else json.dumps(content).encode()
        kind = "application/octet-stream" if is_raw else "application/json"
        texts = {key: str(value) for key, value in query.items()}
        request = ApiRequest(
            {"model": name}, texts, memoryview(body), content_type=kind
        )
        return predictions.ask(self._service, request).predictions

    def close(self) -> None:
        self._service.close()


def by_label(entries: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return scores by label."""
    return {entry["label"]: entry["score"] for entry in entries}


def differences(
    ours: Mapping[str, float], theirs: Mapping[str, float], tolerance: float = 1e-4
) -> list[str]:
    """Return the differences between two answers, for messages."""
    if set(ours) != set(theirs):
        return [f"labels {sorted(ours)} and {sorted(theirs)}"]
    return [
        f"{label}: {ours[label]:.6f} and {theirs[label]:.6f}"
        for label in ours
        if abs(ours[label] - theirs[label]) > tolerance * max(1.0, abs(theirs[label]))
    ]
