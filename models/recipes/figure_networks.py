"""Convolutional networks that are described once, trained by TensorFlow, and written as TFLite and as ONNX.

Import this module before TensorFlow: it sets environment variables that are read once, at import.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import onnx
import tensorflow as tf

SEED = 0


class Network:
    """Convolutions in TensorFlow, NHWC, whose weights are made when a name is used first."""

    def __init__(self) -> None:
        self.weights: dict[str, tuple[tf.Variable, tf.Variable]] = {}
        self._rng = np.random.default_rng(SEED)

    def conv(self, x: tf.Tensor, name: str, out: int, size: int = 3, step: int = 1, spread: int = 1) -> tf.Tensor:
        if name not in self.weights:
            taken = int(x.shape[-1])
            kernel = self._rng.normal(0, np.sqrt(2 / (size * size * taken)), (size, size, taken, out))
            self.weights[name] = (tf.Variable(kernel.astype(np.float32)), tf.Variable(np.zeros(out, np.float32)))
        kernel, bias = self.weights[name]
        if spread > 1:  # of the dilated kernel itself there is no gradient on the CPU
            return tf.nn.bias_add(tf.nn.atrous_conv2d(x, kernel, spread, "SAME"), bias)
        return tf.nn.bias_add(tf.nn.conv2d(x, kernel, step, "SAME"), bias)

    relu = staticmethod(tf.nn.relu)
    add = staticmethod(tf.add)

    def rows(self, x: tf.Tensor, columns: int) -> tf.Tensor:
        """[n, h, w, k * columns] to [n, h * w * k, columns]."""
        return tf.reshape(x, (-1, x.shape[1] * x.shape[2] * x.shape[3] // columns, columns))

    def join(self, parts: list[tf.Tensor]) -> tf.Tensor:
        return tf.concat(parts, 1)

    def variables(self) -> list[tf.Variable]:
        return [one for pair in self.weights.values() for one in pair]


class OnnxNetwork:
    """The same description as nodes of ONNX: pictures come as NCHW, answers go out in the order of TensorFlow."""

    def __init__(self, weights: dict[str, tuple[tf.Variable, tf.Variable]]) -> None:
        self._weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def conv(self, x: str, name: str, out: int, size: int = 3, step: int = 1, spread: int = 1) -> str:
        kernel, bias = (variable.numpy() for variable in self._weights[name])
        inputs = [x, self._half(f"{name}.kernel", kernel.transpose(3, 2, 0, 1)), self._half(f"{name}.bias", bias)]
        if step > 1:
            return self.node("Conv", inputs, auto_pad="SAME_UPPER", strides=[step] * 2)
        around = [spread * (size // 2)] * 4  # ONNX Runtime takes no automatic padding of dilated kernels
        return self.node("Conv", inputs, pads=around, dilations=[spread] * 2)

    def relu(self, x: str) -> str:
        return self.node("Relu", [x])

    def add(self, x: str, y: str) -> str:
        return self.node("Add", [x, y])

    def rows(self, x: str, columns: int) -> str:
        turned = self.node("Transpose", [x], perm=[0, 2, 3, 1])
        return self.node("Reshape", [turned, self._constant(np.array([1, -1, columns]))])

    def join(self, parts: list[str]) -> str:
        return self.node("Concat", parts, axis=1)

    def node(self, kind: str, inputs: list[str], **options: object) -> str:
        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(kind, inputs, [name], **options))
        return name

    def _half(self, name: str, values: np.ndarray) -> str:
        """A constant in half precision: half the file, and the same weights as TFLite's."""
        self.constants.append(onnx.numpy_helper.from_array(values.astype(np.float16), name))
        return self.node("Cast", [name], to=onnx.TensorProto.FLOAT)

    def _constant(self, values: np.ndarray) -> str:
        self.constants.append(onnx.numpy_helper.from_array(values, f"constant_{len(self.constants)}"))
        return self.constants[-1].name


def train(
    name: str, network: Network, loss_of: Callable[..., tf.Tensor], data: list[np.ndarray], steps: int, size: int = 32
) -> None:
    """Adam on batches of pictures whose colour channels change places, which makes more pictures of few."""
    rng = np.random.default_rng(SEED)
    optimizer = tf.keras.optimizers.Adam(tf.keras.optimizers.schedules.CosineDecay(2e-3, steps))
    loss_of(*(tf.constant(part[:1].astype(np.float32)) for part in data))  # makes the variables

    @tf.function
    def step(*parts: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(*parts)
        variables = network.variables()
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    for number in range(steps):
        chosen = rng.integers(0, len(data[0]), size)
        pictures = data[0][chosen][..., rng.permutation(3)]
        loss = step(*(tf.constant(part.astype(np.float32)) for part in (pictures, *(p[chosen] for p in data[1:]))))
        if number % 500 == 0 or number == steps - 1:
            print(f"{name}: step {number}, loss {float(loss):.4f}", flush=True)


def to_tflite(path: Path, network: Network, function: Callable, picture: tf.TensorSpec) -> None:
    """With weights in half precision, and a signature that keeps the outputs' names."""
    module = tf.Module()
    module.weights = network.variables()
    run = tf.function(function, input_signature=[picture])
    with tempfile.TemporaryDirectory() as saved:
        tf.saved_model.save(module, saved, signatures=run.get_concrete_function())
        path.write_bytes(_converted(saved))
    print(f"{path.name}: {path.stat().st_size} bytes", flush=True)


def _converted(saved: str) -> bytes:
    converter = tf.lite.TFLiteConverter.from_saved_model(saved)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.target_spec.supported_types = [tf.float16]
    return converter.convert()


def to_onnx(path: Path, network: Network, layers: Callable, shape: tuple, outputs: list[tuple[str, tuple]]) -> None:
    net = OnnxNetwork(network.weights)
    for result, (name, form) in zip(layers(net, "image"), outputs):
        # Maps leave as NHWC, like TensorFlow's; tables are in order already.
        net.nodes.append(
            onnx.helper.make_node("Transpose", [result], [name], perm=[0, 2, 3, 1])
            if len(form) == 4
            else onnx.helper.make_node("Identity", [result], [name])
        )
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        net.nodes,
        path.stem,
        [info("image", onnx.TensorProto.FLOAT, shape)],
        [info(name, onnx.TensorProto.FLOAT, form) for name, form in outputs],
        net.constants,
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())
    print(f"{path.name}: {path.stat().st_size} bytes", flush=True)


