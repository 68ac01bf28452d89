"""Tells whether the configuration in a Keras file names only what is known to compute.

The configuration says which classes and functions Keras is to look up and to call, by module and name. Keras refuses
some that are known to be harmful (``safe_mode``, a list of functions); here only those are allowed that are known to be
harmless, so that what is new is refused by itself. Left out are layers that hold code (``Lambda``), read a model from a
path (``TFSMLayer``) or wrap another framework (``JaxLayer``, ``FlaxLayer``, ``TorchModuleWrapper``), and functions that
fetch or write files, as those of ``keras.applications`` and ``keras.utils`` do.

Where a module is given, it must be one of those that hold such classes: Keras imports what stands there.
Source of the format: ``keras.saving.deserialize_keras_object``, "Arguments".
"""

from __future__ import annotations

import importlib
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


LAYERS = _names(
    """
    Activation ActivityRegularization AdaptiveAveragePooling1D AdaptiveAveragePooling2D AdaptiveAveragePooling3D
    AdaptiveMaxPooling1D AdaptiveMaxPooling2D AdaptiveMaxPooling3D Add AdditiveAttention AlphaDropout Attention
    AugMix AutoContrast Average AveragePooling1D AveragePooling2D AveragePooling3D AvgPool1D AvgPool2D AvgPool3D
    BatchNormalization Bidirectional CategoryEncoding CenterCrop Concatenate
    ContrastLimitedAdaptiveHistogramEqualization Conv1D Conv1DTranspose Conv2D Conv2DTranspose Conv3D
    Conv3DTranspose ConvLSTM1D ConvLSTM2D ConvLSTM3D Convolution1D Convolution1DTranspose Convolution2D
    Convolution2DTranspose Convolution3D Convolution3DTranspose Cropping1D Cropping2D Cropping3D CutMix Dense
    DepthwiseConv1D DepthwiseConv2D Discretization Dot Dropout ELU EinsumDense Embedding Equalization Flatten GRU
    GRUCell GaussianDropout GaussianNoise GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D
    GlobalAvgPool1D GlobalAvgPool2D GlobalAvgPool3D GlobalMaxPool1D GlobalMaxPool2D GlobalMaxPool3D
    GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D GroupNormalization GroupQueryAttention HashedCrossing
    Hashing Identity InputLayer InputSpec IntegerLookup LSTM LSTMCell Layer LayerNormalization LeakyReLU Masking
    MaxNumBoundingBoxes MaxPool1D MaxPool2D MaxPool3D MaxPooling1D MaxPooling2D MaxPooling3D Maximum MelSpectrogram
    Minimum MixUp MultiHeadAttention Multiply Normalization PReLU Permute Pipeline RMSNormalization RNN RandAugment
    RandomBrightness RandomColorDegeneration RandomColorJitter RandomContrast RandomCrop RandomElasticTransform
    RandomErasing RandomFlip RandomGaussianBlur RandomGrayscale RandomHue RandomInvert RandomPerspective
    RandomPosterization RandomRotation RandomSaturation RandomSharpness RandomShear RandomTranslation RandomZoom
    ReLU RepeatVector Rescaling Reshape Resizing ReversibleEmbedding STFTSpectrogram SeparableConv1D SeparableConv2D
    SeparableConvolution1D SeparableConvolution2D SimpleRNN SimpleRNNCell Softmax Solarization SpatialDropout1D
    SpatialDropout2D SpatialDropout3D SpectralNormalization StackedRNNCells StringLookup Subtract TextVectorization
    TimeDistributed UnitNormalization UpSampling1D UpSampling2D UpSampling3D Wrapper ZeroPadding1D ZeroPadding2D
    ZeroPadding3D
    """
)
"""The public layers of Keras 3.15, without those that reach out."""

OTHERS = _names(
    """
    Functional Model Sequential InputSpec
    AUC AWQConfig AWQDTypePolicy AbsMaxQuantizer Accuracy Adadelta Adafactor Adagrad Adam AdamW Adamax
    BinaryAccuracy BinaryCrossentropy BinaryFocalCrossentropy BinaryIoU CTC CategoricalAccuracy
    CategoricalCrossentropy CategoricalFocalCrossentropy CategoricalGeneralizedCrossEntropy CategoricalHinge Circle
    ConcordanceCorrelation Constant Constraint CosineDecay CosineDecayRestarts CosineSimilarity DTypePolicy
    DTypePolicyMap Dice ExponentialDecay F1Score FBetaScore FalseNegatives FalsePositives Float8QuantizationConfig
    FloatDTypePolicy Ftrl GPTQConfig GPTQDTypePolicy GlorotNormal GlorotUniform HeNormal HeUniform Hinge Huber
    Identity IdentityInitializer Initializer Int4DTypePolicy Int4QuantizationConfig Int8QuantizationConfig
    InverseTimeDecay IoU KLDivergence L1 L1L2 L2 Lamb LearningRateSchedule LecunNormal LecunUniform Lion LogCosh
    LogCoshError Loss LossScaleOptimizer MaxNorm Mean MeanAbsoluteError MeanAbsolutePercentageError MeanIoU
    MeanMetricWrapper MeanSquaredError MeanSquaredLogarithmicError Metric MinMaxNorm MultiOptimizer Muon Nadam
    NonNeg OneHotIoU OneHotMeanIoU Ones Optimizer OptimizerMap Orthogonal OrthogonalInitializer
    OrthogonalRegularizer PearsonCorrelation PiecewiseConstantDecay Poisson PolynomialDecay Precision
    PrecisionAtRecall QuantizationConfig QuantizedDTypePolicy QuantizedFloat8DTypePolicy Quantizer R2Score RMSprop
    RandomNormal RandomUniform Recall RecallAtPrecision Regularizer RootMeanSquaredError SGD STFT STFTInitializer
    ScheduleFreeAdamW SeedGenerator SensitivityAtSpecificity SparseCategoricalAccuracy SparseCategoricalCrossentropy
    SparseTopKCategoricalAccuracy SpecificityAtSensitivity SquaredHinge Sum TopKCategoricalAccuracy TrueNegatives
    TruePositives TruncatedNormal Tversky UnitNorm VarianceScaling Zeros constant glorot_normal glorot_uniform
    he_normal he_uniform identity l1 l1_l2 l2 lecun_normal lecun_uniform max_norm min_max_norm non_neg ones
    orthogonal orthogonal_regularizer random_normal random_uniform stft truncated_normal unit_norm variance_scaling
    zeros
    """
)
"""Models, initializers, regularizers, constraints, losses, metrics, optimizers, quantizers and policies."""

_CLASSES = LAYERS | OTHERS

_VALUES = _names("__keras_tensor__ __tensor__ __numpy__ __bytes__ __ellipsis__ __slice__ __tuple__ TensorShape")
"""Names of plain values."""

_KINDS = "initializers|regularizers|constraints|losses|metrics|optimizers|quantizers|dtype_policies|random"
_MODULES = re.compile(rf"keras(\.src)?(\.(layers|models|{_KINDS})(\.\w+)*)?")
_OPERATIONS = re.compile(r"keras(\.src)?\.ops(\.(numpy|math|nn|core|image|linalg|einops))?")
_FUNCTIONS = re.compile(rf"builtins|keras\.(activations|{_KINDS})")


def check_config(path: Path) -> None:
    """Refuse a file whose configuration names anything else.

    Raises:
        ValueError: in words like those of Keras, whose own errors about such files come after it.
        Exception: the file cannot be read; Keras says why.
    """
    config = _read(path)
    if not isinstance(config, dict):
        return  # Keras says what is missing
    if path.suffix == ".keras":
        config = config | {"compile_config": None}  # as it is loaded
    for item in _dictionaries(config):
        if isinstance(item.get("vocabulary"), str):
            raise ValueError("Not allowed: a vocabulary that lies in another file")
        if "class_name" in item:
            _check_class(item["class_name"], item.get("module"), item.get("config"))


def _read(path: Path) -> Any:
    """Return what Keras reads: it goes by the ending."""
    if path.suffix == ".keras":
        with zipfile.ZipFile(path) as archive:
            return json.loads(archive.read("config.json"))
    with importlib.import_module("h5py").File(path, "r") as file:
        text = file.attrs.get("model_config")
    return None if text is None else json.loads(text)


def _dictionaries(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    waiting: list[Any] = [config]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            yield item
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item


def _check_class(name: Any, module: Any, config: Any) -> None:
    if name == "function":
        if not (isinstance(module, str) and (_FUNCTIONS.fullmatch(module) or _OPERATIONS.fullmatch(module))):
            raise ValueError(f"Not allowed: the function {config!r:.80} of {module!r:.80}")
        return
    if name in ("Lambda", "__lambda__"):
        raise ValueError("Not allowed: Lambda")
    if not isinstance(name, str) or not isinstance(module, str | None) or str(module).endswith("_test"):
        raise ValueError(f"Not allowed: a class of {module!r:.80}")
    if name in _VALUES or _OPERATIONS.fullmatch(module or ""):
        return
    if name not in _CLASSES or not _MODULES.fullmatch("keras" if module is None else module):
        raise ValueError(f"Could not locate class '{name:.80}'.")
