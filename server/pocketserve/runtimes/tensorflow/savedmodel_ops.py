"""The operators that a SavedModel may run: an allow-list, so that what is new or unknown is refused.

An operator is on it if all that it does is to compute from its inputs and attributes, or to change what the model
itself holds: its variables, tables, tensor arrays and random numbers. One is not on it if any input, attribute or state
of it leads elsewhere, whatever it is for:

* files: readers, writers, checkpoints, vocabularies by path (``FixedUnigramCandidateSampler``, ``Skipgram``),
  descriptors of messages (``DecodeProtoV2``), memory regions (``ImmutableConst`` maps any file), dumps, summaries;
* data sets, iterators and queues: most of them end in a file or in a function that the graph alone does not show;
* the network, other processes, devices, collectives, TPUs; Python;
* the process: ``Abort``, ``Sleep``, printing (it forges lines of the log), batching threads, barriers, mutexes;
* programs in another language: XLA's own operators, whose custom calls find any symbol of the process by name;
* calibration, statistics, and what exists for TensorFlow's tests; names that begin with ``_``, which only TensorFlow's
  optimizers write (``_EagerConst`` stands in saved functions).

It was made from the registry of TensorFlow 2.21: of its 1,908 operators these are fewer than half. A test holds it
against the registry of the installed one: no operator here has state, a function, or an argument that is called like a
path or an address, except those that the test names.
"""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


STATELESS = _names(
    """
    Abs AccumulateNV2 Acos Acosh Add AddN AddV2 AdjustContrast AdjustContrastv2 AdjustHue AdjustSaturation All Angle
    Any ApplyAdaMax ApplyAdadelta ApplyAdagrad ApplyAdagradDA ApplyAdagradV2 ApplyAdam ApplyAddSign
    ApplyCenteredRMSProp ApplyFtrl ApplyFtrlV2 ApplyGradientDescent ApplyMomentum ApplyPowerSign
    ApplyProximalAdagrad ApplyProximalGradientDescent ApplyRMSProp ApproxTopK ApproximateEqual ArgMax ArgMin
    AsString Asin Asinh Assign AssignAdd AssignSub Atan Atan2 Atanh AudioSpectrogram AvgPool AvgPool3D AvgPool3DGrad
    AvgPoolGrad BandedTriangularSolve BatchCholesky BatchCholeskyGrad BatchFFT BatchFFT2D BatchFFT3D BatchIFFT
    BatchIFFT2D BatchIFFT3D BatchMatMul BatchMatMulV2 BatchMatMulV3 BatchMatrixBandPart BatchMatrixDeterminant
    BatchMatrixDiag BatchMatrixDiagPart BatchMatrixInverse BatchMatrixSetDiag BatchMatrixSolve BatchMatrixSolveLs
    BatchMatrixTriangularSolve BatchNormWithGlobalNormalization BatchNormWithGlobalNormalizationGrad
    BatchSelfAdjointEig BatchSelfAdjointEigV2 BatchSvd BatchToSpace BatchToSpaceND BesselI0 BesselI0e BesselI1
    BesselI1e BesselJ0 BesselJ1 BesselK0 BesselK0e BesselK1 BesselK1e BesselY0 BesselY1 Betainc BiasAdd BiasAddGrad
    BiasAddV1 Bincount Bitcast BitwiseAnd BitwiseOr BitwiseXor BlockLSTM BlockLSTMGrad BlockLSTMGradV2 BlockLSTMV2
    BroadcastArgs BroadcastGradientArgs BroadcastTo Bucketize CSRSparseMatrixComponents CSRSparseMatrixToDense
    CSRSparseMatrixToSparseTensor CTCBeamSearchDecoder CTCGreedyDecoder CTCLoss CTCLossV2 Cast Ceil Cholesky
    CholeskyGrad ClipByValue CombinedNonMaxSuppression Complex ComplexAbs CompositeTensorVariantFromComponents
    CompositeTensorVariantToComponents ComputeAccidentalHits Concat ConcatOffset ConcatV2 Conj ConjugateTranspose
    Const ControlTrigger Conv Conv2D Conv2DBackpropFilter Conv2DBackpropFilterV2 Conv2DBackpropInput
    Conv2DBackpropInputV2 Conv3D Conv3DBackpropFilter Conv3DBackpropFilterV2 Conv3DBackpropInput
    Conv3DBackpropInputV2 Cos Cosh CountUpTo CropAndResize CropAndResizeGradBoxes CropAndResizeGradImage Cross
    Cumprod Cumsum CumulativeLogsumexp DataFormatDimMap DataFormatVecPermute Dawsn DecodeAndCropJpeg DecodeBase64
    DecodeBmp DecodeCSV DecodeCompressed DecodeGif DecodeImage DecodeJSONExample DecodeJpeg DecodeJxl
    DecodePaddedRaw DecodePng DecodeRaw DecodeWav DecodeWebP DenseBincount DenseCountSparseOutput
    DenseToCSRSparseMatrix DenseToDenseSetOperation DenseToSparseSetOperation DepthToSpace DepthwiseConv2dNative
    DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput Dequantize DeserializeManySparse
    DeserializeSparse DestroyTemporaryVariable Diag DiagPart Digamma Dilation2D Dilation2DBackpropFilter
    Dilation2DBackpropInput Div DivNoNan DrawBoundingBoxes DrawBoundingBoxesV2 DynamicPartition DynamicStitch
    EditDistance Eig Einsum Elu EluGrad EmptyTensorList EmptyTensorMap EncodeBase64 EncodeJpeg
    EncodeJpegVariableQuality EncodePng EncodeWav EnsureShape Enter Equal Erf Erfc Erfinv EuclideanNorm Exit Exp
    ExpandDims Expint Expm1 ExtractGlimpse ExtractGlimpseV2 ExtractImagePatches ExtractJpegShape
    ExtractVolumePatches FFT FFT2D FFT3D FFTND FakeParam FakeQuantWithMinMaxArgs FakeQuantWithMinMaxArgsGradient
    FakeQuantWithMinMaxVars FakeQuantWithMinMaxVarsGradient FakeQuantWithMinMaxVarsPerChannel
    FakeQuantWithMinMaxVarsPerChannelGradient Fill Fingerprint Floor FloorDiv FloorMod For FractionalAvgPool
    FractionalAvgPoolGrad FractionalMaxPool FractionalMaxPoolGrad FresnelCos FresnelSin FusedBatchNorm
    FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3 FusedBatchNormV2 FusedBatchNormV3 FusedPadConv2D
    FusedResizeAndPadConv2D GRUBlockCell GRUBlockCellGrad Gather GatherNd GatherV2 Greater GreaterEqual HSVToRGB
    HistogramFixedWidth IFFT IFFT2D IFFT3D IFFTND IRFFT IRFFT2D IRFFT3D IRFFTND Identity IdentityN Igamma
    IgammaGradA Igammac Imag ImageProjectiveTransformV2 ImageProjectiveTransformV3 InTopK InTopKV2 Inv InvGrad
    Invert InvertPermutation IsFinite IsInf IsNan IsVariableInitialized IsotonicRegression KthOrderStatistic L2Loss
    LRN LRNGrad LSTMBlockCell LSTMBlockCellGrad LeakyRelu LeakyReluGrad LeftShift Less LessEqual Lgamma LinSpace
    ListDiff Log Log1p LogMatrixDeterminant LogSoftmax LogicalAnd LogicalNot LogicalOr LoopCond LowerBound Lu
    MakeUnique MapDefun MatMul MatrixBandPart MatrixDeterminant MatrixDiag MatrixDiagPart MatrixDiagPartV2
    MatrixDiagPartV3 MatrixDiagV2 MatrixDiagV3 MatrixExponential MatrixInverse MatrixLogarithm MatrixSetDiag
    MatrixSetDiagV2 MatrixSetDiagV3 MatrixSolve MatrixSolveLs MatrixSquareRoot MatrixTriangularSolve Max MaxPool
    MaxPool3D MaxPool3DGrad MaxPool3DGradGrad MaxPoolGrad MaxPoolGradGrad MaxPoolGradGradV2
    MaxPoolGradGradWithArgmax MaxPoolGradV2 MaxPoolGradWithArgmax MaxPoolV2 MaxPoolWithArgmax Maximum Mean Merge
    Mfcc Min Minimum MirrorPad MirrorPadGrad Mod Mul MulNoNan Ndtri Neg NextAfter NextIteration NoOp
    NonMaxSuppression NonMaxSuppressionV2 NonMaxSuppressionV3 NonMaxSuppressionV4 NonMaxSuppressionV5
    NonMaxSuppressionWithOverlaps NotEqual NthElement OneHot OnesLike Pack Pad PadV2 ParallelConcat
    ParallelDynamicStitch ParseExample ParseExampleV2 ParseSequenceExample ParseSequenceExampleV2 ParseSingleExample
    ParseSingleSequenceExample ParseTensor PartitionedCall Placeholder PlaceholderV2 PlaceholderWithDefault
    Polygamma PopulationCount Pow PreventGradient Prod Qr QuantizeAndDequantize QuantizeAndDequantizeV2
    QuantizeAndDequantizeV3 QuantizeAndDequantizeV4 QuantizeAndDequantizeV4Grad QuantizeDownAndShrinkRange
    QuantizeV2 QuantizedAdd QuantizedAvgPool QuantizedBatchNormWithGlobalNormalization QuantizedBiasAdd
    QuantizedConcat QuantizedConcatV2 QuantizedConv2D QuantizedConv2DAndRelu QuantizedConv2DAndReluAndRequantize
    QuantizedConv2DAndRequantize QuantizedConv2DPerChannel QuantizedConv2DWithBias QuantizedConv2DWithBiasAndRelu
    QuantizedConv2DWithBiasAndReluAndRequantize QuantizedConv2DWithBiasAndRequantize
    QuantizedConv2DWithBiasSignedSumAndReluAndRequantize QuantizedConv2DWithBiasSumAndRelu
    QuantizedConv2DWithBiasSumAndReluAndRequantize QuantizedDepthwiseConv2D QuantizedDepthwiseConv2DWithBias
    QuantizedDepthwiseConv2DWithBiasAndRelu QuantizedDepthwiseConv2DWithBiasAndReluAndRequantize
    QuantizedInstanceNorm QuantizedMatMul QuantizedMatMulWithBias QuantizedMatMulWithBiasAndDequantize
    QuantizedMatMulWithBiasAndRelu QuantizedMatMulWithBiasAndReluAndRequantize QuantizedMatMulWithBiasAndRequantize
    QuantizedMaxPool QuantizedMul QuantizedRelu QuantizedRelu6 QuantizedReluX QuantizedReshape
    QuantizedResizeBilinear RFFT RFFT2D RFFT3D RFFTND RGBToHSV RaggedBincount RaggedCountSparseOutput RaggedCross
    RaggedFillEmptyRows RaggedFillEmptyRowsGrad RaggedGather RaggedRange RaggedTensorFromVariant
    RaggedTensorToSparse RaggedTensorToTensor RaggedTensorToVariant RaggedTensorToVariantGradient RandomGammaGrad
    RandomIndexShuffle Range Rank Real RealDiv Reciprocal ReciprocalGrad ReduceJoin RefEnter RefExit RefIdentity
    RefMerge RefNextIteration RefSelect RefSwitch RegexFullMatch RegexReplace Relu Relu6 Relu6Grad ReluGrad
    RequantizationRange RequantizationRangePerChannel Requantize RequantizePerChannel Reshape ResizeArea
    ResizeBicubic ResizeBicubicGrad ResizeBilinear ResizeBilinearGrad ResizeNearestNeighbor
    ResizeNearestNeighborGrad Reverse ReverseSequence ReverseV2 RightShift Rint Roll Round Rsqrt RsqrtGrad
    ScaleAndTranslate ScaleAndTranslateGrad ScatterAdd ScatterDiv ScatterMax ScatterMin ScatterMul ScatterNd
    ScatterNdAdd ScatterNdMax ScatterNdMin ScatterNdNonAliasingAdd ScatterNdSub ScatterNdUpdate ScatterSub
    ScatterUpdate SegmentMax SegmentMaxV2 SegmentMean SegmentMin SegmentMinV2 SegmentProd SegmentProdV2 SegmentSum
    SegmentSumV2 Select SelectV2 SelfAdjointEig SelfAdjointEigV2 Selu SeluGrad SerializeManySparse SerializeSparse
    SerializeTensor SetSize Shape ShapeN ShardedFilename Sigmoid SigmoidGrad Sign Sin Sinh Size Slice Snapshot
    SobolSample Softmax SoftmaxCrossEntropyWithLogits Softplus SoftplusGrad Softsign SoftsignGrad SpaceToBatch
    SpaceToBatchND SpaceToDepth SparseAdd SparseAddGrad SparseApplyAdadelta SparseApplyAdagrad SparseApplyAdagradDA
    SparseApplyAdagradV2 SparseApplyCenteredRMSProp SparseApplyFtrl SparseApplyFtrlV2 SparseApplyMomentum
    SparseApplyProximalAdagrad SparseApplyProximalGradientDescent SparseApplyRMSProp SparseBincount SparseConcat
    SparseCountSparseOutput SparseCross SparseCrossHashed SparseCrossV2 SparseDenseCwiseAdd SparseDenseCwiseDiv
    SparseDenseCwiseMul SparseFillEmptyRows SparseFillEmptyRowsGrad SparseMatMul SparseMatrixAdd SparseMatrixMatMul
    SparseMatrixMul SparseMatrixNNZ SparseMatrixOrderingAMD SparseMatrixSoftmax SparseMatrixSoftmaxGrad
    SparseMatrixSparseCholesky SparseMatrixSparseMatMul SparseMatrixTranspose SparseMatrixZeros SparseReduceMax
    SparseReduceMaxSparse SparseReduceSum SparseReduceSumSparse SparseReorder SparseReshape SparseSegmentMean
    SparseSegmentMeanGrad SparseSegmentMeanGradV2 SparseSegmentMeanWithNumSegments SparseSegmentSqrtN
    SparseSegmentSqrtNGrad SparseSegmentSqrtNGradV2 SparseSegmentSqrtNWithNumSegments SparseSegmentSum
    SparseSegmentSumGrad SparseSegmentSumGradV2 SparseSegmentSumWithNumSegments SparseSlice SparseSliceGrad
    SparseSoftmax SparseSoftmaxCrossEntropyWithLogits SparseSparseMaximum SparseSparseMinimum SparseSplit
    SparseTensorDenseAdd SparseTensorDenseMatMul SparseTensorToCSRSparseMatrix SparseToDense
    SparseToSparseSetOperation Spence Split SplitV Sqrt SqrtGrad Square SquaredDifference Squeeze StackClose
    StackPop StackPush StatelessCase StatelessIf StatelessMultinomial StatelessParameterizedTruncatedNormal
    StatelessRandomBinomial StatelessRandomGammaV2 StatelessRandomGammaV3 StatelessRandomGetKeyCounter
    StatelessRandomGetKeyCounterAlg StatelessRandomNormal StatelessRandomNormalV2 StatelessRandomPoisson
    StatelessRandomUniform StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2 StatelessRandomUniformInt
    StatelessRandomUniformIntV2 StatelessRandomUniformV2 StatelessSampleDistortedBoundingBox StatelessShuffle
    StatelessTruncatedNormal StatelessTruncatedNormalV2 StatelessWhile StaticRegexFullMatch StaticRegexReplace
    StochasticCastToInt StopGradient StridedSlice StridedSliceAssign StridedSliceGrad StringFormat StringJoin
    StringLength StringLower StringNGrams StringSplit StringSplitV2 StringStrip StringToHashBucket
    StringToHashBucketFast StringToHashBucketStrong StringToNumber StringUpper Sub Substr Sum Svd Switch Tan Tanh
    TanhGrad TensorArrayClose TensorArrayCloseV2 TensorArrayConcat TensorArrayConcatV2 TensorArrayGather
    TensorArrayGatherV2 TensorArrayPack TensorArrayRead TensorArrayReadV2 TensorArrayScatter TensorArrayScatterV2
    TensorArraySize TensorArraySizeV2 TensorArraySplit TensorArraySplitV2 TensorArrayUnpack TensorArrayWrite
    TensorArrayWriteV2 TensorListConcat TensorListConcatLists TensorListConcatV2 TensorListElementShape
    TensorListFromTensor TensorListGather TensorListGetItem TensorListLength TensorListPopBack TensorListPushBack
    TensorListPushBackBatch TensorListReserve TensorListResize TensorListScatter TensorListScatterIntoExistingList
    TensorListScatterV2 TensorListSetItem TensorListSplit TensorListStack TensorMapErase TensorMapHasKey
    TensorMapInsert TensorMapLookup TensorMapSize TensorMapStackKeys TensorScatterAdd TensorScatterMax
    TensorScatterMin TensorScatterSub TensorScatterUpdate TensorStridedSliceUpdate Tile TileGrad ToBool TopK
    TopKUnique TopKV2 TopKWithUnique Transpose TridiagonalMatMul TridiagonalSolve TruncateDiv TruncateMod
    UnicodeDecode UnicodeDecodeWithOffsets UnicodeEncode UnicodeScript UnicodeTranscode UniformDequantize
    UniformQuantize UniformQuantizedAdd UniformQuantizedClipByValue UniformQuantizedConvolution
    UniformQuantizedConvolutionHybrid UniformQuantizedDot UniformQuantizedDotHybrid UniformRequantize Unique
    UniqueV2 UniqueWithCounts UniqueWithCountsV2 Unpack UnravelIndex UnsortedSegmentJoin UnsortedSegmentMax
    UnsortedSegmentMin UnsortedSegmentProd UnsortedSegmentSum UpperBound Where Xdivy Xlog1py Xlogy ZerosLike Zeta
    _EagerConst
    """
)
"""Without state of their own. Those on references, as TensorFlow 1 has them, change the model's variables."""

CONTROL = _names(
    """
    Assert Case CheckNumerics CheckNumericsV2 DeviceIndex GuaranteeConst If StatefulPartitionedCall While
    """
)
"""Calls, branches and loops, whose functions are looked at like the graph, and checks."""

VARIABLES = _names(
    """
    AssignAddVariableOp AssignSubVariableOp AssignVariableOp DeepCopy DestroyResourceOp DisableCopyOnRead Empty
    ReadVariableOp ResourceApplyAdaMax ResourceApplyAdadelta ResourceApplyAdagrad ResourceApplyAdagradDA
    ResourceApplyAdagradV2 ResourceApplyAdam ResourceApplyAdamWithAmsgrad ResourceApplyAddSign
    ResourceApplyCenteredRMSProp ResourceApplyFtrl ResourceApplyFtrlV2 ResourceApplyGradientDescent
    ResourceApplyKerasMomentum ResourceApplyMomentum ResourceApplyPowerSign ResourceApplyProximalAdagrad
    ResourceApplyProximalGradientDescent ResourceApplyRMSProp ResourceCountUpTo ResourceGather ResourceGatherNd
    ResourceScatterAdd ResourceScatterDiv ResourceScatterMax ResourceScatterMin ResourceScatterMul
    ResourceScatterNdAdd ResourceScatterNdMax ResourceScatterNdMin ResourceScatterNdSub ResourceScatterNdUpdate
    ResourceScatterSub ResourceScatterUpdate ResourceSparseApplyAdadelta ResourceSparseApplyAdagrad
    ResourceSparseApplyAdagradDA ResourceSparseApplyAdagradV2 ResourceSparseApplyCenteredRMSProp
    ResourceSparseApplyFtrl ResourceSparseApplyFtrlV2 ResourceSparseApplyKerasMomentum ResourceSparseApplyMomentum
    ResourceSparseApplyProximalAdagrad ResourceSparseApplyProximalGradientDescent ResourceSparseApplyRMSProp
    ResourceStridedSliceAssign TemporaryVariable VarHandleOp VarIsInitializedOp Variable VariableShape VariableV2
    """
)
"""Read and change the model's variables."""

TABLES = _names(
    """
    AnonymousHashTable AnonymousMutableDenseHashTable AnonymousMutableHashTable AnonymousMutableHashTableOfTensors
    HashTable HashTableV2 InitializeTable InitializeTableFromTextFile InitializeTableFromTextFileV2
    InitializeTableV2 LookupTableExport LookupTableExportV2 LookupTableFind LookupTableFindV2 LookupTableImport
    LookupTableImportV2 LookupTableInsert LookupTableInsertV2 LookupTableRemoveV2 LookupTableSize LookupTableSizeV2
    MutableDenseHashTable MutableDenseHashTableV2 MutableHashTable MutableHashTableOfTensors
    MutableHashTableOfTensorsV2 MutableHashTableV2
    """
)
"""Look up and change the model's tables. What fills one from a file is looked at by itself."""

ARRAYS = _names(
    """
    Stack StackCloseV2 StackPopV2 StackPushV2 StackV2 TensorArray TensorArrayCloseV3 TensorArrayConcatV3
    TensorArrayGatherV3 TensorArrayGrad TensorArrayGradV2 TensorArrayGradV3 TensorArrayGradWithShape
    TensorArrayReadV3 TensorArrayScatterV3 TensorArraySizeV3 TensorArraySplitV3 TensorArrayV2 TensorArrayV3
    TensorArrayWriteV3
    """
)
"""Lists and stacks within one run."""

RANDOM = _names(
    """
    Multinomial NonDeterministicInts ParameterizedTruncatedNormal RandomCrop RandomGamma RandomPoisson
    RandomPoissonV2 RandomShuffle RandomStandardNormal RandomUniform RandomUniformInt RngReadAndSkip RngSkip
    SampleDistortedBoundingBox SampleDistortedBoundingBoxV2 StatefulRandomBinomial StatefulStandardNormal
    StatefulStandardNormalV2 StatefulTruncatedNormal StatefulUniform StatefulUniformFullInt StatefulUniformInt
    StatelessRandomGetAlg TruncatedNormal
    """
)
"""Random numbers, from generators that are variables or from the process's."""

ALLOWED = STATELESS | CONTROL | VARIABLES | TABLES | ARRAYS | RANDOM

RESTORES = _names("Restore RestoreSlice RestoreV2")
"""Read checkpoints: allowed in the step that restores the model's own variables, from where the loader says."""

FROM_FILE = {"InitializeTableFromTextFile": 1, "InitializeTableFromTextFileV2": 1}
"""Operators that may read an asset, and which of their inputs is the path."""
