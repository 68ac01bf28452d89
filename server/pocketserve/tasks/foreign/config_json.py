"""Keys of ``config.json``, which Hugging Face's libraries write beside a model.

Most of its keys describe the network, which the model file contains already. The rows are those that decide how its
input is made or how its outputs are read.
"""

from __future__ import annotations

from pocketserve.tasks.foreign.keys import Effect, ForeignFile, Key
from pocketserve.tasks.foreign.timm_config import with_section
from pocketserve.tasks.foreign.windows_ml import PICTURE_TASKS

_CONFIG = "huggingface/transformers, configuration_utils.py"
_TIMM = (
    "huggingface/pytorch-image-models, timm/data/config.py and transforms_factory.py"
)
_PIPELINE = "huggingface/transformers, pipelines/text_classification.py"
_CROSS_ENCODER = "huggingface/sentence-transformers, cross_encoder/model.py"

TABLE = ForeignFile(
    "config.json",
    (
        Key("architectures", Effect.APPLIED, _CONFIG),
        Key("id2label", Effect.APPLIED, _CONFIG),
        Key("label2id", Effect.HARMLESS, _CONFIG),
        Key("max_position_embeddings", Effect.APPLIED, _CONFIG),
        Key(
            "n_positions",
            Effect.APPLIED,
            "huggingface/transformers, configuration_gpt2.py",
        ),
        Key(
            "pad_token_id",
            Effect.APPLIED,
            "huggingface/transformers, modeling_roberta.py: padding_idx + 1",
        ),
        Key(
            "position_biased_input",
            Effect.APPLIED,
            "huggingface/transformers, modeling_deberta_v2.py",
        ),
        Key("model_type", Effect.APPLIED, _CONFIG),
        Key("num_labels", Effect.APPLIED, _CONFIG),
        Key("function_to_apply", Effect.APPLIED, _PIPELINE),
        Key("task_specific_params.*.function_to_apply", Effect.APPLIED, _PIPELINE),
        Key("sentence_transformers.activation_fn", Effect.APPLIED, _CROSS_ENCODER),
        Key("sbert_ce_default_activation_function", Effect.APPLIED, _CROSS_ENCODER),
        Key("problem_type", Effect.APPLIED, _CONFIG),
        Key("num_channels", Effect.APPLIED, _CONFIG),
        Key("label_names", Effect.APPLIED, _TIMM),
        Key("pretrained_cfg.label_names", Effect.APPLIED, _TIMM),
        Key("pretrained_cfg.labels", Effect.APPLIED, _TIMM),
        Key("pretrained_cfg.input_size", Effect.APPLIED, _TIMM),
        Key("pretrained_cfg.interpolation", Effect.APPLIED, _TIMM),
        Key("pretrained_cfg.crop_pct", Effect.APPLIED, _TIMM),
        Key("pretrained_cfg.crop_mode", Effect.APPLIED, _TIMM),
        Key("pretrained_cfg.mean", Effect.APPLIED, _TIMM),
        Key("pretrained_cfg.std", Effect.APPLIED, _TIMM),
        Key(
            "pretrained_cfg.crop_border_pixels",
            Effect.UNSUPPORTED,
            _TIMM,
            neutral=(0,),
            tasks=PICTURE_TASKS,
        ),
        # These two describe training and a second test size, which timm uses only on request.
        Key("pretrained_cfg.test_input_size", Effect.HARMLESS, _TIMM),
        Key("pretrained_cfg.test_crop_pct", Effect.HARMLESS, _TIMM),
        # The layers that timm replaces for another number of classes; the exported network has its classes already.
        Key("pretrained_cfg.num_classes", Effect.HARMLESS, _TIMM),
        Key("pretrained_cfg.first_conv", Effect.HARMLESS, _TIMM),
        Key("pretrained_cfg.classifier", Effect.HARMLESS, _TIMM),
    ),
    reports_unknown=False,
    complete=with_section,
)
