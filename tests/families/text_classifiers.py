"""List the text classifiers of transformers to compare.

PyTorch can't export FNet, whose layers are Fourier transforms.
"""

from __future__ import annotations

from typing import Any

from families.text_reference import LENGTH, TRANSFORMERS, Family, TextModel

TINY = {
    **{
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
    },
    "max_position_embeddings": LENGTH,
}
BEHIND_PADDING = {**TINY, "max_position_embeddings": LENGTH + 2}
DEBERTA = {
    **TINY,
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "type_vocab_size": 2,
}
THREE = {"num_labels": 3}

MODELS: dict[str, TextModel] = {
    "BERT": TextModel("Bert", "Bert", "wordpiece", {**TINY, **THREE}),
    "BERT, several labels": TextModel(
        "Bert",
        "Bert",
        "wordpiece",
        {**TINY, **THREE, "problem_type": "multi_label_classification"},
    ),
    "BERT, regression": TextModel(
        "Bert",
        "Bert",
        "wordpiece",
        {**TINY, "num_labels": 1, "problem_type": "regression"},
    ),
    "BERT, one label": TextModel(
        "Bert", "Bert", "wordpiece", {**TINY, "num_labels": 1}
    ),
    "BERT, cased": TextModel(
        "Bert",
        "Bert",
        "wordpiece",
        {**TINY, **THREE},
        tokenizing={"do_lower_case": False},
    ),
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
            **THREE,
        },
        types=False,
    ),
    "RoBERTa": TextModel(
        "Roberta", "Roberta", "bpe", {**BEHIND_PADDING, **THREE}, types=False
    ),
    "RoBERTa, space in front": TextModel(
        "Roberta",
        "Roberta",
        "bpe",
        {**BEHIND_PADDING, **THREE},
        types=False,
        edits={"add_prefix_space": True},
    ),
    "XLM-RoBERTa": TextModel(
        "XLMRoberta", "XLMRoberta", "unigram", {**BEHIND_PADDING, **THREE}, types=False
    ),
    "CamemBERT": TextModel(
        "Camembert", "Camembert", "unigram", {**BEHIND_PADDING, **THREE}, types=False
    ),
    "ALBERT": TextModel(
        "Albert", "Albert", "unigram", {**TINY, **THREE, "embedding_size": 16}
    ),
    "ELECTRA": TextModel(
        "Electra", "Electra", "wordpiece", {**TINY, **THREE, "embedding_size": 16}
    ),
    "DeBERTa": TextModel("Deberta", "Deberta", "bpe", {**DEBERTA, **THREE}),
    "DeBERTa V2": TextModel(
        "DebertaV2",
        "DebertaV2",
        "unigram",
        {**DEBERTA, **THREE, "position_biased_input": False},
        length=512,
    ),
    "MPNet": TextModel(
        "MPNet", "MPNet", "wordpiece", {**BEHIND_PADDING, **THREE}, types=False
    ),
    "XLNet": TextModel(
        "XLNet",
        "XLNet",
        "unigram",
        {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48, **THREE},
        length=512,
    ),
    "SqueezeBERT": TextModel(
        "SqueezeBert", "Bert", "wordpiece", {**TINY, **THREE, "embedding_size": 32}
    ),
    "MobileBERT": TextModel(
        "MobileBert",
        "Bert",
        "wordpiece",
        {**TINY, **THREE, "embedding_size": 16, "intra_bottleneck_size": 32},
    ),
    "BigBird": TextModel(
        "BigBird",
        "BigBird",
        "unigram",
        {**TINY, **THREE, "attention_type": "original_full"},
    ),
    "Funnel": TextModel(
        "Funnel",
        "Funnel",
        "wordpiece",
        {
            "d_model": 32,
            "n_head": 4,
            "d_head": 8,
            "d_inner": 48,
            "block_sizes": [1, 1],
            "num_decoder_layers": 1,
            **THREE,
        },
        fixed=True,
    ),
    "ConvBERT": TextModel(
        "ConvBert", "Bert", "wordpiece", {**TINY, **THREE, "embedding_size": 16}
    ),
    "Nystromformer": TextModel(
        "Nystromformer",
        "Albert",
        "unigram",
        {**TINY, **THREE, "num_landmarks": LENGTH, "segment_means_seq_len": LENGTH},
    ),
    "GPT-2": TextModel(
        "GPT2",
        "GPT2",
        "bpe",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": LENGTH, **THREE},
        tokenizing={"pad_token": "<pad>"},
        pairs=False,
    ),
    "T5": TextModel(
        "T5",
        "T5",
        "unigram",
        {
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 1,
            "eos_token_id": 2,
            **THREE,
        },
        types=False,
        tokenizing={"extra_ids": 0},
        pairs=False,
        length=512,
    ),
    "Longformer": TextModel(
        "Longformer",
        "Roberta",
        "bpe",
        {**BEHIND_PADDING, **THREE, "attention_window": [8, 8]},
        types=False,
        fixed=True,
    ),
    "Data2VecText": TextModel(
        "Data2VecText", "Roberta", "bpe", {**BEHIND_PADDING, **THREE}, types=False
    ),
    "I-BERT": TextModel(
        "IBert", "Roberta", "bpe", {**BEHIND_PADDING, **THREE}, types=False
    ),
    "RoFormer": TextModel("RoFormer", "Bert", "wordpiece", {**TINY, **THREE}),
    "ERNIE": TextModel("Ernie", "Bert", "wordpiece", {**TINY, **THREE}),
    "ModernBERT": TextModel(
        "ModernBert",
        "Bert",
        "wordpiece",
        {**TINY, **THREE, "local_attention": 8, "cls_token_id": 2, "sep_token_id": 3},
        types=False,
    ),
    "MEGATRON-BERT": TextModel("MegatronBert", "Bert", "wordpiece", {**TINY, **THREE}),
}

FAMILIES = [Family(name, TRANSFORMERS, "text-classification") for name in MODELS]


def expected(pipeline: Any, content: Any, spec: TextModel) -> dict[str, float]:
    """Return the pipeline's scores by label."""
    options: dict[str, Any] = {"truncation": True, "max_length": spec.length}
    if spec.fixed:
        options["padding"] = "max_length"
    return {
        entry["label"]: entry["score"]
        for entry in pipeline(content, top_k=None, **options)
    }
