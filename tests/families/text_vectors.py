"""List the embedders, rerankers and question answerers to compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from families.text_classifiers import TINY
from families.text_reference import (
    LENGTH,
    PAIRS,
    SENTENCES,
    TEXTS,
    TRANSFORMERS,
    Family,
    TextModel,
    config_of,
    export,
    import_torchvision,
    make_tokenizer,
    spread,
)

BERT = TextModel("Bert", "Bert", "wordpiece", TINY)
ROBERTA = TextModel(
    "Roberta",
    "Roberta",
    "bpe",
    {**TINY, "max_position_embeddings": LENGTH + 2},
    types=False,
)
MPNET = TextModel(
    "MPNet",
    "MPNet",
    "wordpiece",
    {**TINY, "max_position_embeddings": LENGTH + 2},
    types=False,
)


@dataclass(frozen=True)
class SentenceModel:
    """A tiny embedder of sentence-transformers.

    Attributes:
        base: the network and its tokenizer.
        pooling: arguments of the module Pooling.
        dense: arguments of modules Dense, and the names of their activations.
        normalize: whether the last module is Normalize.
        settings: of SentenceTransformer, such as prompts.
        complete: whether the export contains all modules, as optimum's do.
    """

    base: TextModel = BERT
    pooling: Mapping[str, Any] = field(default_factory=dict)
    dense: tuple[tuple[int, str], ...] = ()
    normalize: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    complete: bool = False


PROMPTS = {
    "query": "who was it: ",
    "document": "a song: ",
    "task": "the film ",
}
EMBEDDERS: dict[str, SentenceModel] = {
    **{
        f"pooling {mode}": SentenceModel(pooling={"pooling_mode": mode})
        for mode in (
            "cls",
            "max",
            "mean",
            "mean_sqrt_len_tokens",
            "weightedmean",
            "lasttoken",
        )
    },
    "several poolings": SentenceModel(pooling={"pooling_mode": ("cls", "max", "mean")}),
    "normalised": SentenceModel(normalize=True),
    "dense": SentenceModel(dense=((16, "Tanh"),), normalize=True),
    "dense, GELU": SentenceModel(dense=((16, "GELU"),)),
    "two dense layers": SentenceModel(dense=((24, "ReLU"), (8, "Identity"))),
    "default prompt": SentenceModel(
        settings={"prompts": PROMPTS, "default_prompt_name": "task"}
    ),
    "prompts of queries and documents, dot product": SentenceModel(
        settings={"prompts": PROMPTS, "similarity_fn_name": "dot"}
    ),
    "prompt left out of pooling": SentenceModel(
        pooling={"pooling_mode": "weightedmean", "include_prompt": False},
        settings={"prompts": PROMPTS, "default_prompt_name": "task"},
    ),
    "export of all modules": SentenceModel(
        dense=((16, "Tanh"),), normalize=True, complete=True
    ),
    "RoBERTa": SentenceModel(ROBERTA, normalize=True),
    "MPNet": SentenceModel(MPNET, {"pooling_mode": "cls"}),
}
RERANKERS: dict[str, tuple[TextModel, str]] = {
    "CrossEncoder, BERT": (BERT, "Sigmoid"),
    "CrossEncoder, BERT without activation": (BERT, "Identity"),
    "CrossEncoder, RoBERTa": (ROBERTA, "Sigmoid"),
}
ANSWERERS: dict[str, TextModel] = {
    "BERT": BERT,
    "DistilBERT": TextModel(
        "DistilBert",
        "DistilBert",
        "wordpiece",
        {
            "dim": 32,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 48,
            "max_position_embeddings": LENGTH,
        },
        types=False,
    ),
    "RoBERTa": ROBERTA,
    "ELECTRA": TextModel(
        "Electra", "Electra", "wordpiece", {**TINY, "embedding_size": 16}
    ),
}
FAMILIES = [
    *(Family(name, SENTENCES, "text-embedding") for name in EMBEDDERS),
    *(Family(name, SENTENCES, "text-classification") for name in RERANKERS),
    *(Family(name, TRANSFORMERS, "question-answering") for name in ANSWERERS),
]


def write_embedder(spec: SentenceModel, folder: Path, scratch: Path) -> Any:
    """Write a tiny embedder with its files; return the SentenceTransformer."""
    import torch
    import transformers

    import_torchvision()
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    torch.manual_seed(0)
    tokenizer = make_tokenizer(spec.base)
    network = transformers.AutoModel.from_config(
        config_of(spec.base, tokenizer), attn_implementation="eager"
    ).eval()
    network.save_pretrained(scratch)
    tokenizer.save_pretrained(scratch)
    steps: list[Any] = [modules.Transformer(str(scratch), max_seq_length=LENGTH)]
    pooling = modules.Pooling(32, **spec.pooling)
    steps.append(pooling)
    size = pooling.pooling_output_dimension
    for width, activation in spec.dense:
        steps.append(
            modules.Dense(
                size, width, activation_function=getattr(torch.nn, activation)()
            )
        )
        size = width
    if spec.normalize:
        steps.append(modules.Normalize())
    sentences = SentenceTransformer(modules=steps, device="cpu", **spec.settings).eval()
    sentences.save(str(folder))
    example = tokenizer(TEXTS[0], return_tensors="pt")
    names = [name for name in example if spec.base.types or name != "token_type_ids"]
    inputs = {name: example[name] for name in names}
    if spec.complete:
        export(
            _complete(sentences), inputs, ["sentence_embedding"], folder / "model.onnx"
        )
    else:
        export(
            network,
            inputs,
            ["last_hidden_state", "pooler_output"],
            folder / "model.onnx",
        )
    (folder / "model.safetensors").unlink()
    (folder / "model.toml").write_text('task = "text-embedding"\n')
    return sentences


def _complete(sentences: Any) -> Any:
    """Return a network of all of a SentenceTransformer's modules, like optimum's
    exports.
    """
    import torch

    class Complete(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sentences = sentences

        def forward(self, **features: Any) -> Any:
            return self.sentences(dict(features))

    return Complete()


def write_reranker(
    spec: TextModel, activation: str, folder: Path, scratch: Path
) -> Any:
    """Write a tiny reranker with its files; return the CrossEncoder."""
    import torch
    import transformers

    import_torchvision()
    from sentence_transformers import CrossEncoder

    torch.manual_seed(0)
    tokenizer = make_tokenizer(spec)
    config = config_of(spec, tokenizer, num_labels=1)
    network = transformers.AutoModelForSequenceClassification.from_config(
        config, attn_implementation="eager"
    ).eval()
    spread(network)
    network.save_pretrained(scratch)
    tokenizer.save_pretrained(scratch)
    function = getattr(torch.nn, activation)()
    encoder = CrossEncoder(
        str(scratch), max_length=LENGTH, activation_fn=function, device="cpu"
    )
    encoder.save_pretrained(str(folder))
    example = tokenizer(*PAIRS[0], return_tensors="pt")
    names = [name for name in example if spec.types or name != "token_type_ids"]
    export(
        network,
        {name: example[name] for name in names},
        ["logits"],
        folder / "model.onnx",
    )
    (folder / "model.safetensors").unlink()
    (folder / "model.toml").write_text('task = "text-classification"\n')
    return encoder


def write_answerer(spec: TextModel, folder: Path) -> tuple[Any, Any]:
    """Write a tiny model that answers questions; return the network and its tokenizer."""
    import torch
    import transformers

    import_torchvision()
    torch.manual_seed(0)
    tokenizer = make_tokenizer(spec)
    config = config_of(spec, tokenizer)
    network = transformers.AutoModelForQuestionAnswering.from_config(
        config, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        network.qa_outputs.weight.mul_(30)
    folder.mkdir(parents=True)
    network.config.architectures = [type(network).__name__]
    network.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    example = tokenizer(*PAIRS[0], return_tensors="pt")
    names = [name for name in example if spec.types or name != "token_type_ids"]
    outputs = ["start_logits", "end_logits"]
    export(
        network, {name: example[name] for name in names}, outputs, folder / "model.onnx"
    )
    (folder / "model.toml").write_text('task = "question-answering"\n')
    return network, transformers.AutoTokenizer.from_pretrained(folder)
