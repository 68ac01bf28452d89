"""Table classifiers and regressions of converters, through the server's own code."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketserve.api import predictions
from pocketserve.api.messages import ApiRequest
from pocketserve.formats import DamagedFileError
from pocketserve.repository import quiet
from pocketserve.runtimes.metadata import ClassOutput
from pocketserve.runtimes.onnx.class_names import read_class_outputs
from pocketserve.terminal.local import open_local
from pocketserve_wire import ApiError

onnx = pytest.importorskip("onnx", reason="makes the models")

pytestmark = pytest.mark.onnx

KINDS = {"f": 1, "i": 7, "s": 8}
"""TensorProto.DataType by letter."""

ML = "ai.onnx.ml"
CLASSIFIER = 'task = "tabular-classification"\n'
REGRESSION = 'task = "tabular-regression"\n'
X3 = ("X", "f", ["n", 3])

Port = tuple[str, str, list[Any]]


def node(
    kind: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any
) -> Any:
    """Return a node in the domain of its operator."""
    domain = attributes.pop("domain", "")
    return onnx.helper.make_node(kind, inputs, outputs, domain=domain, **attributes)


def ml(
    kind: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any
) -> Any:
    """Return a node of ``ai.onnx.ml``."""
    return node(kind, inputs, outputs, domain=ML, **attributes)


def save(
    path: Path,
    nodes: Sequence[Any],
    inputs: Sequence[Port],
    outputs: Sequence[Any],
    **constants: Any,
) -> Path:
    """Write a model.

    An output that is not a port is a ``ValueInfoProto``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)

    def info(port: Any) -> Any:
        if not isinstance(port, tuple):
            return port
        name, kind, shape = port
        return onnx.helper.make_tensor_value_info(name, KINDS[kind], shape)

    tensors = [
        onnx.numpy_helper.from_array(np.asarray(value), name)
        for name, value in constants.items()
    ]
    graph = onnx.helper.make_graph(
        nodes, "g", list(map(info, inputs)), list(map(info, outputs)), tensors
    )
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid(ML, 3)]
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), str(path)
    )
    return path


def ask(
    path: Path, body: Any, manifest: str = CLASSIFIER, **query: str
) -> list[dict[str, Any]]:
    """Return the server's answer."""
    (path.parent / "model.toml").write_text(manifest)
    service, name, _ = open_local(str(path), None)
    try:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = ApiRequest(
            path={"model": name}, query=query, body=memoryview(content)
        )
        answer: list[dict[str, Any]] = predictions.document(
            predictions.ask(service, request)
        )["predictions"]
        return answer
    finally:
        service.close()


def labels_of(answer: Sequence[dict[str, Any]]) -> list[str]:
    """Return the labels in order."""
    return [entry["label"] for entry in answer]


@pytest.fixture(autouse=True)
def no_waiting_for_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load each model at once, although its files are new."""
    monkeypatch.setattr(quiet, "QUIET_S", 0.0)


# Names in the graph


def linear(
    path: Path, classes: Sequence[Any], after: Sequence[Any] = (), label: str = "label"
) -> Path:
    """Create a linear classifier whose scores are the row itself."""
    is_text = isinstance(classes[0], str)
    attribute = {
        "classlabels_strings" if is_text else "classlabels_ints": list(classes)
    }
    classifier = ml(
        "LinearClassifier",
        ["X"],
        [label if not after else "raw", "probabilities"],
        coefficients=np.eye(3, dtype=np.float32).reshape(-1).tolist(),
        intercepts=[0.0, 0.0, 0.0],
        multi_class=0,
        post_transform="NONE",
        **attribute,
    )
    kind = "i"
    if is_text:
        kind = "s"
    outputs = [(label, kind, ["n"]), ("probabilities", "f", ["n", 3])]
    return save(path, [classifier, *after], [X3], outputs)


def gathered(path: Path, classes: Any, kind: str, cast: bool = False) -> Path:
    """Create softmax scores and a winner from a constant list, as skl2onnx does."""
    end = "picked"
    if not cast:
        end = "label"
    nodes = [
        node("Softmax", ["X"], ["probabilities"], axis=1),
        node("ArgMax", ["X"], ["number"], axis=1, keepdims=0),
        node("Gather", ["classes", "number"], [end]),
    ]
    if cast:
        nodes += [
            node("Cast", ["picked"], ["wide"], to=7),
            node("Reshape", ["wide", "flat"], ["label"]),
        ]
    outputs = [("label", kind, ["n"]), ("probabilities", "f", ["n", 3])]
    return save(path, nodes, [X3], outputs, classes=classes, flat=np.array([-1]))


GRAPHS: dict[str, tuple[Callable[[Path], Path], list[str]]] = {
    "classlabels_ints": (lambda path: linear(path, [10, 20, 30]), ["30", "20", "10"]),
    "classlabels from one": (lambda path: linear(path, [1, 2, 3]), ["3", "2", "1"]),
    "negative classes": (lambda path: linear(path, [-1, 0, 1]), ["1", "0", "-1"]),
    "classlabels_strings": (
        lambda path: linear(path, ["b", "a", "ö"]),
        ["ö", "a", "b"],
    ),
    "after a cast": (
        lambda path: linear(
            path, [10, 20, 30], [node("Cast", ["raw"], ["label"], to=7)]
        ),
        ["30", "20", "10"],
    ),
    "after a label encoder": (
        lambda path: linear(
            path,
            [0, 1, 2],
            [
                ml(
                    "LabelEncoder",
                    ["raw"],
                    ["label"],
                    keys_int64s=[0, 1, 2],
                    values_int64s=[7, 8, 9],
                )
            ],
        ),
        ["9", "8", "7"],
    ),
    "a constant list": (
        lambda path: gathered(path, np.array([10, 20, 30]), "i"),
        ["30", "20", "10"],
    ),
    "a constant list of int32": (
        lambda path: gathered(path, np.array([1, 2, 3], np.int32), "i", cast=True),
        ["3", "2", "1"],
    ),
    "a constant list of texts": (
        lambda path: gathered(path, np.array(["x", "y", "z"], object), "s"),
        ["z", "y", "x"],
    ),
}


@pytest.mark.parametrize("graph", GRAPHS)
def test_class_names_come_from_the_graph(tmp_path: Path, graph: str) -> None:
    build, expected = GRAPHS[graph]

    answer = ask(build(tmp_path / "m" / "m.onnx"), [1, 2, 3])

    assert labels_of(answer) == expected
    assert [entry["index"] for entry in answer] == [2, 1, 0]
    assert answer[0]["score"] > answer[1]["score"] > answer[2]["score"]


def test_top_k_and_threshold(tmp_path: Path) -> None:
    path = linear(tmp_path / "m" / "m.onnx", [10, 20, 30])

    assert labels_of(ask(path, [[1, 2, 3], [3, 2, 1]], top_k="1")) == ["30", "10"]
    assert labels_of(ask(path, [1, 2, 3], threshold="1.5")) == ["30", "20"]


def test_the_manifest_overrides_the_graph(tmp_path: Path) -> None:
    path = linear(tmp_path / "m" / "m.onnx", [10, 20, 30])

    answer = ask(path, [1, 2, 3], f'{CLASSIFIER}labels = ["low", "middle", "high"]\n')

    assert labels_of(answer) == ["high", "middle", "low"]


@pytest.mark.parametrize(
    ("classes", "expected"),
    [([0, 1, 2], ["high", "middle", "low"]), (["a", "b", "c"], ["c", "b", "a"])],
)
def test_a_label_file_names_numbers_only(
    tmp_path: Path, classes: list[Any], expected: list[str]
) -> None:
    path = linear(tmp_path / "m" / "m.onnx", classes)
    (path.parent / "labels.txt").write_text("low\nmiddle\nhigh\n")

    assert labels_of(ask(path, [1, 2, 3])) == expected


def test_renamed_outputs_keep_their_classes(tmp_path: Path) -> None:
    path = linear(tmp_path / "m" / "m.onnx", [10, 20, 30])
    manifest = (
        f'{CLASSIFIER}[[outputs]]\nname = "grade"\ndatatype = "INT64"\nshape = [-1]\n'
        '[[outputs]]\nname = "scores"\ndatatype = "FP32"\nshape = [-1, 3]\n'
    )

    assert labels_of(ask(path, [1, 2, 3], manifest)) == ["30", "20", "10"]


# Names that are not in the graph


def test_an_unknown_column_is_never_a_class(tmp_path: Path) -> None:
    """The classes are computed: the winner is known, but other columns have no names."""
    nodes = [
        node("Softmax", ["X"], ["probabilities"], axis=1),
        node("ArgMax", ["X"], ["number"], axis=1, keepdims=0),
        node("Mul", ["number", "ten"], ["tens"]),
        node("Add", ["tens", "ten"], ["label"]),
    ]
    outputs = [("label", "i", ["n"]), ("probabilities", "f", ["n", 3])]
    path = save(tmp_path / "m" / "m.onnx", nodes, [X3], outputs, ten=np.int64(10))

    answer = ask(path, [[1, 2, 9], [9, 2, 1]])

    assert [(entry["row"], entry["label"]) for entry in answer] == [
        (0, "30"),
        (1, "10"),
    ]
    assert all(entry["score"] > 0.9 for entry in answer)


def test_outliers_have_their_own_labels_and_scores(tmp_path: Path) -> None:
    nodes = [
        node("ReduceMax", ["X"], ["most"], axes=[1], keepdims=1),
        node("Sub", ["one", "most"], ["scores"]),
        node("Sign", ["scores"], ["sign"]),
        node("Cast", ["sign"], ["label"], to=7),
    ]
    outputs = [("label", "i", ["n", 1]), ("scores", "f", ["n", 1])]
    path = save(tmp_path / "m" / "m.onnx", nodes, [X3], outputs, one=np.float32(1))

    answer = ask(path, [[9, 0, 0], [0, 0, 0]])

    assert [(entry["label"], entry["score"]) for entry in answer] == [
        ("-1", -8.0),
        ("1", 1.0),
    ]
    named = ask(
        path, [[9, 0, 0], [0, 0, 0]], f'{CLASSIFIER}labels = ["outlier", "inlier"]\n'
    )
    assert labels_of(named) == ["outlier", "inlier"]


def test_the_advice_for_tables_of_classes_works(tmp_path: Path) -> None:
    nodes = [
        node("Identity", ["X"], ["scores"]),
        node("ArgMin", ["X"], ["label"], axis=1, keepdims=0),
    ]
    outputs = [("label", "i", ["n"]), ("scores", "f", ["n", 3])]
    path = save(tmp_path / "m" / "m.onnx", nodes, [X3], outputs)

    with pytest.raises(
        ApiError,
        match='it returns labels with their scores: write task = "tabular-classification"',
    ):
        ask(path, "a text", "")
    assert labels_of(ask(path, [3, 1, 2], CLASSIFIER))[0] == "1"


def test_the_winner_of_the_model_comes_first(tmp_path: Path) -> None:
    """As for SVC, whose probabilities and decisions differ."""
    nodes = [
        node("Softmax", ["X"], ["probabilities"], axis=1),
        node("Neg", ["X"], ["minus"]),
        node("ArgMax", ["minus"], ["number"], axis=1, keepdims=0),
        node("Gather", ["classes", "number"], ["label"]),
    ]
    outputs = [("label", "i", ["n"]), ("probabilities", "f", ["n", 3])]
    path = save(
        tmp_path / "m" / "m.onnx", nodes, [X3], outputs, classes=np.array([10, 20, 30])
    )

    answer = ask(path, [1, 2, 3])

    assert labels_of(answer) == ["10", "30", "20"]
    assert answer[0]["score"] < answer[2]["score"] < answer[1]["score"]


def test_clusters_are_ordered_by_distance(tmp_path: Path) -> None:
    nodes = [
        node("Identity", ["X"], ["scores"]),
        node("ArgMin", ["X"], ["label"], axis=1, keepdims=0),
    ]
    outputs = [("label", "i", ["n"]), ("scores", "f", ["n", 3])]
    path = save(tmp_path / "m" / "m.onnx", nodes, [X3], outputs)

    answer = ask(path, [3, 1, 2])

    assert [(entry["label"], entry["score"]) for entry in answer] == [
        ("1", 1.0),
        ("2", 2.0),
        ("0", 3.0),
    ]


def test_one_output_per_class(tmp_path: Path) -> None:
    """``zipmap="columns"`` writes one output per class, named with a prefix."""
    nodes = [
        node("Split", ["X", "sizes"], ["i10", "i20", "i30"], axis=1),
        node("ArgMax", ["X"], ["number"], axis=1, keepdims=0),
        node("Mul", ["number", "ten"], ["tens"]),
        node("Add", ["tens", "ten"], ["output_label"]),
    ]
    outputs = [
        ("output_label", "i", ["n"]),
        *((name, "f", ["n", 1]) for name in ("i10", "i20", "i30")),
    ]
    path = save(
        tmp_path / "m" / "m.onnx",
        nodes,
        [X3],
        outputs,
        ten=np.int64(10),
        sizes=np.array([1, 1, 1]),
    )

    answer = ask(path, [[1, 2, 3], [6, 5, 4]])

    assert [(entry["row"], entry["label"], entry["score"]) for entry in answer] == [
        *((0, "30", 3.0), (0, "20", 2.0), (0, "10", 1.0)),
        *((1, "10", 6.0), (1, "20", 5.0), (1, "30", 4.0)),
    ]


def zip_map(path: Path, classes: Sequence[Any]) -> Path:
    """Create scores as a map by class."""
    is_text = isinstance(classes[0], str)
    attribute = {
        "classlabels_strings" if is_text else "classlabels_int64s": list(classes)
    }
    key = KINDS["s" if is_text else "i"]
    value = onnx.helper.make_tensor_type_proto(KINDS["f"], [])
    sequence = onnx.helper.make_sequence_type_proto(
        onnx.helper.make_map_type_proto(key, value)
    )
    nodes = [
        node("ArgMax", ["X"], ["number"], axis=1, keepdims=0),
        node("Gather", ["classes", "number"], ["label"]),
        ml("ZipMap", ["X"], ["probability"], **attribute),
    ]
    outputs = [
        ("label", "s" if is_text else "i", ["n"]),
        onnx.helper.make_value_info("probability", sequence),
    ]
    constant = np.array(classes, object if is_text else np.int64)
    return save(path, nodes, [X3], outputs, classes=constant)


@pytest.mark.parametrize("classes", [[10, 20, 30], [1, 2, 3], ["a", "b", "c"]])
def test_a_map_by_class(tmp_path: Path, classes: list[Any]) -> None:
    answer = ask(zip_map(tmp_path / "m" / "m.onnx", classes), [1, 3, 2])

    assert labels_of(answer) == [str(classes[1]), str(classes[2]), str(classes[0])]
    assert [entry["score"] for entry in answer] == [3.0, 2.0, 1.0]


def test_a_map_whose_classes_are_not_sorted(tmp_path: Path) -> None:
    """The index is the model's own, in the answer and the description."""
    path = zip_map(tmp_path / "m" / "m.onnx", ["c", "a", "b"])

    answer = ask(path, [1, 3, 2])

    assert [(entry["label"], entry["index"], entry["score"]) for entry in answer] == [
        *(("a", 1, 3.0), ("b", 2, 2.0), ("c", 0, 1.0)),
    ]
    named = ask(path, [1, 3, 2], f'{CLASSIFIER}labels = ["first", "second", "third"]\n')
    assert labels_of(named) == ["second", "third", "first"]


def test_labels_of_more_classes_than_columns(tmp_path: Path) -> None:
    """The winner has no column of its own, so the scores decide."""
    nodes = [
        node("Identity", ["X"], ["scores"]),
        node("ReduceMax", ["X"], ["most"], axes=[1], keepdims=0),
        node("Cast", ["most"], ["label"], to=7),
    ]
    outputs = [("label", "i", ["n"]), ("scores", "f", ["n", 3])]
    path = save(tmp_path / "m" / "m.onnx", nodes, [X3], outputs)

    answer = ask(path, [1, 3, 4], f'{CLASSIFIER}labels = ["0", "1", "2", "3", "4"]\n')

    assert labels_of(answer) == ["2", "1", "0"]


def test_additional_integers_are_not_classes(tmp_path: Path) -> None:
    """``decision_leaf=True`` of sklearn-onnx adds them."""
    nodes = [
        node("Identity", ["X"], ["probabilities"]),
        node("ArgMax", ["X"], ["number"], axis=1, keepdims=0),
        node("Gather", ["classes", "number"], ["label"]),
        node("Cast", ["X"], ["leaf"], to=7),
    ]
    outputs = [
        ("label", "i", ["n"]),
        ("probabilities", "f", ["n", 3]),
        ("leaf", "i", ["n", 3]),
    ]
    path = save(
        tmp_path / "m" / "m.onnx", nodes, [X3], outputs, classes=np.array([10, 20, 30])
    )

    assert labels_of(ask(path, [1, 3, 2])) == ["20", "30", "10"]


def test_a_model_with_only_winners(tmp_path: Path) -> None:
    nodes = [
        node("ArgMax", ["X"], ["number"], axis=1, keepdims=0),
        node("Gather", ["classes", "number"], ["label"]),
    ]
    path = save(
        tmp_path / "m" / "m.onnx",
        nodes,
        [X3],
        [("label", "s", ["n"])],
        classes=np.array(["x", "y", "z"], object),
    )

    assert ask(path, [1, 3, 2]) == [{"label": "y", "index": 1}]


# Several targets


def two_targets(path: Path) -> Path:
    """Create winners [rows, targets] and scores [targets, rows, classes].

    The second target's scores are the negative features.
    """
    nodes = [
        node("Neg", ["X"], ["minus"]),
        node("ArgMax", ["X"], ["X_n"], axis=1, keepdims=1),
        node("ArgMax", ["minus"], ["minus_n"], axis=1, keepdims=1),
        node("Gather", ["classes_X", "X_n"], ["X_l"]),
        node("Gather", ["classes_minus", "minus_n"], ["minus_l"]),
        node("Concat", ["X_l", "minus_l"], ["label"], axis=1),
        node("Unsqueeze", ["X", "zero"], ["X_p"]),
        node("Unsqueeze", ["minus", "zero"], ["minus_p"]),
        node("Concat", ["X_p", "minus_p"], ["probabilities"], axis=0),
    ]
    outputs = [("label", "i", ["n", 2]), ("probabilities", "f", [2, "n", 3])]
    constants = {
        "classes_X": np.array([10, 20, 30]),
        "classes_minus": np.array([7, 8, 9]),
        "zero": np.array([0]),
    }
    return save(path, nodes, [X3], outputs, **constants)


def test_several_targets_of_one_output(tmp_path: Path) -> None:
    """scikit-learn's forests have such outputs."""
    path = two_targets(tmp_path / "m" / "m.onnx")

    answer = ask(path, [[1, 2, 3], [6, 5, 4]], top_k="1")

    keys = ("row", "name", "label", "score")
    assert [tuple(entry[key] for key in keys) for entry in answer] == [
        (0, "label[0]", "30", 3.0),
        (0, "label[1]", "7", -1.0),
        (1, "label[0]", "10", 6.0),
        (1, "label[1]", "9", -4.0),
    ]
    named = ask(path, [1, 2, 3], f'{CLASSIFIER}[target]\nnames = ["grade", "wear"]\n')
    assert [entry["name"] for entry in named] == ["grade"] * 3 + ["wear"] * 3


def test_several_outputs_of_winners(tmp_path: Path) -> None:
    nodes = [
        node("Identity", ["X"], ["colour_scores"]),
        node("ArgMax", ["X"], ["n"], axis=1, keepdims=0),
        node("Gather", ["colours", "n"], ["colour"]),
        node("Neg", ["X"], ["size_scores"]),
        node("ArgMax", ["size_scores"], ["m"], axis=1, keepdims=0),
        node("Gather", ["sizes", "m"], ["size"]),
    ]
    outputs = [
        *(("colour", "s", ["n"]), ("colour_scores", "f", ["n", 3])),
        *(("size", "i", ["n"]), ("size_scores", "f", ["n", 3])),
    ]
    constants = {
        "colours": np.array(["red", "green", "blue"], object),
        "sizes": np.array([36, 38, 40]),
    }
    path = save(tmp_path / "m" / "m.onnx", nodes, [X3], outputs, **constants)

    answer = ask(path, [1, 2, 3], top_k="1")

    assert [(entry["name"], entry["label"]) for entry in answer] == [
        ("colour", "blue"),
        ("size", "36"),
    ]


# Regressions


def matrix(path: Path) -> Path:
    """Return three targets of two features."""
    weights = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    nodes = [node("MatMul", ["X", "W"], ["variable"])]
    return save(
        path, nodes, [("X", "f", ["n", 2])], [("variable", "f", ["n", 3])], W=weights
    )


def test_rows_by_feature_name(tmp_path: Path) -> None:
    """JSON and CSV, with texts, reach a model with one input per column."""
    nodes = [
        node("Cast", ["age"], ["age_f"], to=1),
        ml(
            "LabelEncoder",
            ["city"],
            ["city_f"],
            keys_strings=["oslo", "rome"],
            values_floats=[0.0, 10.0],
        ),
        node("Add", ["age_f", "city_f"], ["variable"]),
    ]
    inputs = [("age", "i", ["n", 1]), ("city", "s", ["n", 1])]
    path = save(tmp_path / "m" / "m.onnx", nodes, inputs, [("variable", "f", ["n", 1])])

    assert ask(path, {"city": "rome", "age": 3}, REGRESSION) == [
        {"name": "variable", "value": 13.0}
    ]
    rows = [{"city": "rome", "age": 3}, {"city": "oslo", "age": 4}]
    expected = [
        {"row": 0, "name": "variable", "value": 13.0},
        {"row": 1, "name": "variable", "value": 4.0},
    ]
    assert ask(path, rows, REGRESSION) == expected
    assert ask(path, b"city,age\nrome,3\noslo,4\n", REGRESSION) == expected


def test_values_by_row_and_target(tmp_path: Path) -> None:
    path = matrix(tmp_path / "m" / "m.onnx")

    answer = ask(path, [[1, 0], [0, 1]], REGRESSION)

    assert answer == [
        {"row": row, "name": f"variable[{column}]", "value": 1.0 + column + 3 * row}
        for row in range(2)
        for column in range(3)
    ]
    manifest = (
        f'{REGRESSION}[target]\nnames = ["a", "b", "c"]\nunits = ["m", "s", ""]\n'
    )
    assert ask(path, [0, 1], manifest) == [
        {"name": "a", "value": 4.0, "unit": "m"},
        {"name": "b", "value": 5.0, "unit": "s"},
        {"name": "c", "value": 6.0},
    ]


def test_several_outputs_of_values(tmp_path: Path) -> None:
    nodes = [
        node("ReduceSum", ["X"], ["sum"], keepdims=0),
        node("ReduceMax", ["X"], ["most"], axes=[1]),
    ]
    nodes[0].input.append("axis")
    outputs = [("sum", "f", ["n"]), ("most", "f", ["n", 1])]
    path = save(tmp_path / "m" / "m.onnx", nodes, [X3], outputs, axis=np.array([1]))

    assert ask(path, [[1, 2, 3], [4, 5, 6]], REGRESSION) == [
        {"row": 0, "name": "sum", "value": 6.0},
        {"row": 0, "name": "most", "value": 3.0},
        {"row": 1, "name": "sum", "value": 15.0},
        {"row": 1, "name": "most", "value": 6.0},
    ]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ('names = ["a", "b"]', "target.names has 2, the model answers 3"),
        (
            'names = ["a", "b", "c"]\nunits = ["m"]',
            "target.units has 1, target.names has 3",
        ),
        ('name = "a"\nnames = ["a", "b", "c"]', "use names for several targets"),
    ],
)
def test_mismatched_targets_are_rejected(
    tmp_path: Path, target: str, message: str
) -> None:
    path = matrix(tmp_path / "m" / "m.onnx")

    with pytest.raises(Exception, match=message):
        ask(path, [1, 0], f"{REGRESSION}[target]\n{target}\n")


# The bounded reader


def test_the_reader_names_outputs(tmp_path: Path) -> None:
    path = linear(tmp_path / "m" / "m.onnx", ["a", "b", "c"])

    names = ("a", "b", "c")
    assert read_class_outputs(path) == {
        "label": ClassOutput((names,)),
        "probabilities": ClassOutput((names,), is_label=False),
    }


def test_cycles_and_long_chains_end(tmp_path: Path) -> None:
    """A file is untrusted, so the traversal has a step limit."""
    nodes = [node("Identity", ["b"], ["a"]), node("Identity", ["a"], ["b"])]
    nodes += [
        node("Identity", [f"c{number + 1}"], [f"c{number}"]) for number in range(5000)
    ]
    path = save(
        tmp_path / "m.onnx", nodes, [X3], [("a", "i", ["n"]), ("c0", "i", ["n"])]
    )

    assert read_class_outputs(path) == {}


def test_the_total_size_of_names_is_bounded(tmp_path: Path) -> None:
    """Outputs may share a list of names, but many large lists would fill the memory."""
    names = ["a" * (1 << 19), "b"]
    outputs = [(f"y{number}", "s", ["n"]) for number in range(20)]
    shared = [
        ml(
            "LinearClassifier",
            ["X"],
            ["label", "p"],
            coefficients=[0.0] * 6,
            classlabels_strings=names,
        )
    ]
    shared += [node("Identity", ["label"], [name]) for name, _, _ in outputs]
    own = []
    for number in range(20):
        own.append(
            node("ArrayFeatureExtractor", [f"names{number}", "X"], [f"y{number}"])
        )
    constants = {f"names{number}": np.array(names, object) for number in range(20)}

    class_outputs = read_class_outputs(
        save(tmp_path / "shared.onnx", shared, [X3], outputs)
    )

    assert class_outputs == {
        name: ClassOutput((tuple(names),)) for name, _, _ in outputs
    }
    with pytest.raises(DamagedFileError, match="too many classes"):
        read_class_outputs(save(tmp_path / "own.onnx", own, [X3], outputs, **constants))


def test_targets_that_double_at_each_node_are_bounded(tmp_path: Path) -> None:
    nodes = [
        ml(
            "LinearClassifier",
            ["X"],
            ["c0", "p"],
            coefficients=[0.0] * 6,
            classlabels_strings=["a", "b"],
        )
    ]
    nodes += [
        node("Concat", [f"c{number}"] * 2, [f"c{number + 1}"], axis=0)
        for number in range(60)
    ]
    path = save(tmp_path / "m.onnx", nodes, [X3], [("c60", "s", ["n"])])

    assert read_class_outputs(path) == {}


@pytest.mark.parametrize("content", [b"", b"\xff", b"\x3a\xff\xff\xff\xff\x0f"])
def test_damaged_files_do_no_harm(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)

    with pytest.raises(DamagedFileError):
        read_class_outputs(path)
