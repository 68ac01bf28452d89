"""Keys of the files that sentence-transformers writes beside a model."""

from __future__ import annotations

from pocketserve.tasks.foreign.keys import Effect, ForeignFile, Key

_POOLING = "huggingface/sentence-transformers, sentence_transformer/modules/pooling.py"
_MODEL = "huggingface/sentence-transformers, base/model.py"
_ENCODER = "huggingface/sentence-transformers, sentence_transformer/model.py"
_CROSS = "huggingface/sentence-transformers, cross_encoder/model.py"
_TRANSFORMER = "huggingface/sentence-transformers, base/modules/transformer.py"
_DENSE = "huggingface/sentence-transformers, base/modules/dense.py"
_EMBEDDING = ("text-embedding",)

POOLING = ForeignFile(
    "1_Pooling/config.json",
    (
        Key("pooling_mode", Effect.APPLIED, _POOLING),
        Key("pooling_mode_cls_token", Effect.APPLIED, _POOLING),
        Key("pooling_mode_max_tokens", Effect.APPLIED, _POOLING),
        Key("pooling_mode_mean_tokens", Effect.APPLIED, _POOLING),
        Key("pooling_mode_mean_sqrt_len_tokens", Effect.APPLIED, _POOLING),
        Key("pooling_mode_weightedmean_tokens", Effect.APPLIED, _POOLING),
        Key("pooling_mode_lasttoken", Effect.APPLIED, _POOLING),
        Key("include_prompt", Effect.APPLIED, _POOLING),
        Key("word_embedding_dimension", Effect.HARMLESS, _POOLING),
        Key("embedding_dimension", Effect.HARMLESS, _POOLING),
    ),
)

SETTINGS = ForeignFile(
    "config_sentence_transformers.json",
    (
        Key("prompts", Effect.APPLIED, _MODEL),
        Key("default_prompt_name", Effect.APPLIED, _MODEL),
        Key("similarity_fn_name", Effect.APPLIED, _ENCODER),
        Key("activation_fn", Effect.APPLIED, _CROSS),
        Key("truncate_dim", Effect.UNSUPPORTED, _ENCODER, tasks=_EMBEDDING),
        Key("__version__", Effect.HARMLESS, _MODEL),
        Key("model_type", Effect.HARMLESS, _MODEL),
        Key("keep_in_fp32_modules", Effect.HARMLESS, _CROSS),
    ),
)

TRANSFORMER = ForeignFile(
    "sentence_bert_config.json",
    (
        Key("max_seq_length", Effect.APPLIED, _TRANSFORMER),
        Key("do_lower_case", Effect.APPLIED, _TRANSFORMER),
        Key("query_length", Effect.UNSUPPORTED, _TRANSFORMER, tasks=_EMBEDDING),
        Key("document_length", Effect.UNSUPPORTED, _TRANSFORMER, tasks=_EMBEDDING),
        Key("query_expansion", Effect.UNSUPPORTED, _TRANSFORMER, tasks=_EMBEDDING),
        Key(
            "processing_kwargs",
            Effect.UNSUPPORTED,
            _TRANSFORMER,
            neutral=({},),
            tasks=_EMBEDDING,
        ),
        Key("transformer_task", Effect.HARMLESS, "the export has the task's head"),
        Key(
            "modality_config",
            Effect.HARMLESS,
            "names the network's methods, which the export contains",
        ),
        Key(
            "module_output_name",
            Effect.HARMLESS,
            "names the network's output, which the export contains",
        ),
        Key("unpad_inputs", Effect.HARMLESS, "of speed alone"),
    ),
)

DENSE = tuple(
    ForeignFile(
        f"{folder}/config.json",
        (
            Key("activation_function", Effect.APPLIED, _DENSE),
            Key("in_features", Effect.HARMLESS, "the weights' own shape"),
            Key("out_features", Effect.HARMLESS, "the weights' own shape"),
            Key("bias", Effect.HARMLESS, "the weights say whether there is one"),
            Key("use_residual", Effect.UNSUPPORTED, _DENSE, tasks=_EMBEDDING),
            Key(
                "module_input_name",
                Effect.UNSUPPORTED,
                _DENSE,
                ("sentence_embedding",),
                _EMBEDDING,
            ),
            Key(
                "module_output_name",
                Effect.UNSUPPORTED,
                _DENSE,
                ("sentence_embedding",),
                _EMBEDDING,
            ),
        ),
    )
    for folder in ("2_Dense", "3_Dense")
)

NORMALIZE = tuple(
    ForeignFile(
        f"{folder}/config.json",
        (
            Key(
                "module_input_name",
                Effect.UNSUPPORTED,
                _DENSE,
                ("sentence_embedding",),
                _EMBEDDING,
            ),
            Key(
                "module_output_name",
                Effect.UNSUPPORTED,
                _DENSE,
                ("sentence_embedding",),
                _EMBEDDING,
            ),
        ),
    )
    for folder in ("2_Normalize", "3_Normalize")
)
