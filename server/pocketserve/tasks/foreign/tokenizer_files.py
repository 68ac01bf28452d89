"""Keys of the files that transformers and tokenizers write for a tokenizer."""

from __future__ import annotations

from pocketserve.tasks.foreign.keys import Effect, ForeignFile, Key

_FAST = "huggingface/transformers, tokenization_utils_tokenizers.py"
_BASE = "huggingface/transformers, tokenization_utils_base.py"
_BERT = "huggingface/transformers, tokenization_bert.py"
_ALBERT = "huggingface/transformers, tokenization_albert.py"
_DEBERTA = "huggingface/transformers, tokenization_deberta_v2.py"
_ROBERTA = "huggingface/transformers, tokenization_roberta.py"
_LIBRARY = "huggingface/tokenizers, tokenizer/serialization.rs"
_ADDED = "huggingface/tokenizers, tokenizer/added_vocabulary.rs"
_TEXT_TASKS = ("text-classification", "text-embedding", "question-answering")

_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")

CONFIG = ForeignFile(
    "tokenizer_config.json",
    (
        Key("added_tokens_decoder", Effect.APPLIED, _FAST),
        Key("do_lower_case", Effect.APPLIED, _BERT),
        Key("strip_accents", Effect.APPLIED, _BERT),
        Key("tokenize_chinese_chars", Effect.APPLIED, _BERT),
        Key(
            "do_basic_tokenize",
            Effect.HARMLESS,
            "read by the tokenizers in Python alone, which are not the default",
        ),
        Key(
            "never_split",
            Effect.HARMLESS,
            "read by the tokenizers in Python alone, which are not the default",
        ),
        Key("add_bos_token", Effect.APPLIED, _FAST),
        Key("add_eos_token", Effect.APPLIED, _FAST),
        Key("model_max_length", Effect.APPLIED, _BASE),
        Key(
            "max_length",
            Effect.HARMLESS,
            "a default of calls that the pipelines don't use",
        ),
        Key(
            "max_len",
            Effect.HARMLESS,
            "a former name of model_max_length, which is written too",
        ),
        Key(
            "stride", Effect.HARMLESS, "a default of calls that the pipelines don't use"
        ),
        Key(
            "truncation",
            Effect.HARMLESS,
            "a default of calls that the pipelines don't use",
        ),
        Key(
            "truncation_strategy",
            Effect.HARMLESS,
            "a default of calls that the pipelines don't use",
        ),
        Key(
            "padding",
            Effect.HARMLESS,
            "a default of calls that the pipelines don't use",
        ),
        Key("pad_to_multiple_of", Effect.HARMLESS, "padding has no part in the answer"),
        Key("truncation_side", Effect.APPLIED, _BASE),
        Key("padding_side", Effect.APPLIED, _BASE),
        Key("pad_token_type_id", Effect.APPLIED, _BASE),
        Key("pad_token", Effect.APPLIED, _BASE),
        Key("bos_token", Effect.APPLIED, _BASE),
        Key("eos_token", Effect.APPLIED, _BASE),
        *(
            Key(f"{role}_token", Effect.HARMLESS, _BASE)
            for role in ("unk", "sep", "cls", "mask")
        ),
        Key("add_prefix_space", Effect.APPLIED, _ROBERTA),
        Key("keep_accents", Effect.UNSUPPORTED, _ALBERT, tasks=_TEXT_TASKS),
        Key("split_by_punct", Effect.UNSUPPORTED, _DEBERTA, tasks=_TEXT_TASKS),
        Key("split_special_tokens", Effect.UNSUPPORTED, _BASE, tasks=_TEXT_TASKS),
        Key("clean_up_tokenization_spaces", Effect.HARMLESS, "of decoding alone"),
        Key(
            "additional_special_tokens",
            Effect.HARMLESS,
            "added_tokens_decoder has them too",
        ),
        Key(
            "extra_special_tokens", Effect.HARMLESS, "added_tokens_decoder has them too"
        ),
        Key("tokenizer_class", Effect.APPLIED, _BASE),
        *(
            Key(
                name,
                Effect.HARMLESS,
                "says how the files were made or found, or how text is generated",
            )
            for name in (
                *(
                    "auto_map",
                    "backend",
                    "chat_template",
                    "errors",
                    "extra_ids",
                    "fix_mistral_regex",
                    "is_local",
                ),
                *(
                    "language",
                    "legacy",
                    "local_files_only",
                    "model_input_names",
                    "model_type",
                ),
                *(
                    "name_or_path",
                    "processor_class",
                    "remove_space",
                    "return_token_type_ids",
                    "sp_model_kwargs",
                ),
                *(
                    "special_tokens_map_file",
                    "spaces_between_special_tokens",
                    "tokenizer_file",
                ),
                *(
                    "trim_offsets",
                    "use_default_system_prompt",
                    "use_fast",
                    "vocab_type",
                    "lang",
                    "clean_text",
                ),
                *("wordpieces_prefix", "unk_id", "_commit_hash"),
            )
        ),
    ),
)

SPECIAL_TOKENS = ForeignFile(
    "special_tokens_map.json",
    (
        *(
            Key(f"{role}_token", Effect.APPLIED, _BASE)
            for role in ("pad", "bos", "eos")
        ),
        *(
            Key(f"{role}_token", Effect.HARMLESS, _BASE)
            for role in ("unk", "sep", "cls", "mask")
        ),
        Key("additional_special_tokens", Effect.HARMLESS, "added_tokens has them too"),
        Key("extra_special_tokens", Effect.HARMLESS, "added_tokens has them too"),
    ),
)

TOKENIZER = ForeignFile(
    "tokenizer.json",
    (
        Key("version", Effect.HARMLESS, _LIBRARY),
        Key("truncation.direction", Effect.APPLIED, _FAST),
        Key(
            "truncation.*",
            Effect.HARMLESS,
            "transformers' pipelines cut at model_max_length",
        ),
        Key("padding.direction", Effect.APPLIED, _FAST),
        Key("padding.pad_id", Effect.APPLIED, _FAST),
        Key("padding.pad_token", Effect.APPLIED, _FAST),
        Key("padding.pad_type_id", Effect.APPLIED, _FAST),
        Key("padding.*", Effect.HARMLESS, "padding has no part in the answer"),
        Key("truncation", Effect.HARMLESS, "there is none"),
        Key("padding", Effect.HARMLESS, "there is none"),
        Key("added_tokens", Effect.APPLIED, _ADDED),
        Key("normalizer", Effect.APPLIED, _LIBRARY),
        Key("pre_tokenizer", Effect.APPLIED, _LIBRARY),
        Key("post_processor", Effect.APPLIED, _LIBRARY),
        Key("decoder", Effect.HARMLESS, "of decoding alone"),
        Key("model", Effect.APPLIED, _LIBRARY),
    ),
)
