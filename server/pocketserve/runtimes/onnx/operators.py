"""The operators that an ONNX model may have: those that only compute, and functions that the model defines.

Left out of ONNX Runtime's own are ``EPContext`` and ``Snpe``, which name a file, or hold a program, for the library of
an accelerator; those that call Python in builds for training (``PythonOp``, ``TritonOp``); and those that send the
input to a service in the network (the domain ``com.microsoft.extensions``, whose provider is part of the usual
package). Operators of other domains come from libraries that are not loaded here.
"""

from __future__ import annotations

from collections.abc import Iterable


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


DOMAINS = _names(
    """
    ai.onnx ai.onnx.ml ai.onnx.training ai.onnx.preview ai.onnx.preview.training com.microsoft.nchwc
    com.ms.internal.nhwc
    """
) | {""}
"""Of ONNX, whose operators compute by definition, and of ONNX Runtime's other layouts of them."""

MICROSOFT = _names(
    """
    Attention AttnLSTM BeamSearch BiasAdd BiasDropout BiasGelu BiasSoftmax BiasSplitGelu BifurcationDetector
    BitmaskBiasDropout BitmaskDropout BranchwiseRMSNorm CDist CausalConvWithState ComplexMul ComplexMulConj
    ConvTransposeWithDynamicPads CropAndResize DecoderAttention DecoderMaskedMultiHeadAttention
    DecoderMaskedSelfAttention DequantizeBFP DequantizeLinear DequantizeWithOrder DynamicQuantizeLSTM
    DynamicQuantizeMatMul DynamicSparseAttention DynamicTimeWarping EmbedLayerNormalization EngramGate ExpandDims
    FastGelu FusedConv FusedGemm FusedMatMul FusedMatMulActivation GatedAdd GatedDeltaNet GatedRMSNorm
    GatedRelativePositionBias GatherBlockQuantized GatherND Gelu GemmFastGelu GemmFloat8 GemmaRotaryEmbedding
    GreedySearch GridSample GroupNorm GroupQueryAttention HyperConnectionPostMix HyperConnectionPreMix Inverse Irfft
    IsAllFinite LinearAttention LinearAttentionGate LongformerAttention MRotaryEmbedding
    MatMulBlockQuantizedFp4Weight MatMulBlockQuantizedFp8Weight MatMulBnb4 MatMulFpQ4 MatMulInteger16
    MatMulIntegerToFloat MatMulNBits MatMulNBitsMlp MatMulNBitsQkv MaxpoolWithMask MoE MulInteger MultiHeadAttention
    MurmurHash3 NGramHashMapping NGramRepeatBlock NhwcConv NhwcFusedConv NhwcMaxPool PackedAttention
    PackedMultiHeadAttention PackedSparseAttentionIndexer Pad PagedAttention QAttention QEmbedLayerNormalization
    QGemm QLinearAdd QLinearAveragePool QLinearConcat QLinearConv QLinearGlobalAveragePool QLinearLeakyRelu
    QLinearMul QLinearReduceMean QLinearSigmoid QLinearSoftmax QLinearWhere QMoE QOrderedAttention QOrderedGelu
    QOrderedLayerNormalization QOrderedLongformerAttention QOrderedMatMul QuantizeBFP QuantizeLinear
    QuantizeWithOrder QuickGelu Range ReduceSumInteger RelativePositionBias RemovePadding RestorePadding Rfft
    RotaryEmbedding SampleOp Sampling ScaledSiLU SkipGroupNorm SkipLayerNormalization
    SkipSimplifiedLayerNormalization SparseAttention SparseAttentionIndexer SparsePagedAttention SparseToDenseMatMul
    Tokenizer TorchEmbedding TransposeMatMul Trilu UnfoldTensor Unique VarlenCausalConvWithState
    VarlenNGramHashMapping WhisperBeamSearch WordConvEmbedding
    """
)
"""Of the domain ``com.microsoft``, in ONNX Runtime 1.31."""

Name = tuple[str, str]
"""An operator's or function's domain and type."""


def first_foreign(operators: Iterable[Name], functions: Iterable[Name]) -> Name | None:
    """Return the first operator, by name, that is none of these."""
    own = frozenset(functions)
    return next((name for name in sorted(operators) if not _is_allowed(name, own)), None)


def _is_allowed(name: Name, own: frozenset[Name]) -> bool:
    domain, kind = name
    if domain == "com.microsoft":
        return kind in MICROSOFT
    return domain in DOMAINS or name in own
