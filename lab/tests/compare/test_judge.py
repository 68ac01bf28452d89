"""Score and compare the answers of each task."""

from __future__ import annotations

import base64
import io
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import PIL.Image
import pytest
from sklearn.metrics import f1_score, jaccard_score

from pocketserve.terminal.errors import CommandError
from pocketserve_lab.compare.detections import precision_figures
from pocketserve_lab.compare.judge import judge
from pocketserve_lab.compare.samples import read_classes
from pocketserve_lab.compare.scores import measure_for


def classes(*order: int) -> dict[str, Any]:
    """Return a classifier's answer: the classes, best first."""
    entries = [
        {
            "label": f"c{i}",
            "index": i,
            "score": 1 - place / 10,
        }
        for place, i in enumerate(order)
    ]
    return {"predictions": entries}


def value(number: float) -> dict[str, Any]:
    """Return a regression's answer."""
    return {"predictions": [{"name": "y", "value": number}]}


def box(label: str, x: float, score: float = 0.9) -> dict[str, Any]:
    """Return a detection of 10 by 10 pixels."""
    return {
        "label": label,
        "index": 0,
        "score": score,
        "box": {"x": x, "y": 0, "width": 10, "height": 10},
    }


def true_box(label: str, x: float) -> dict[str, Any]:
    """Return a true box of 10 by 10 pixels."""
    return {
        "label": label,
        "x": x,
        "y": 0,
        "width": 10,
        "height": 10,
    }


def mask(rows: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return a segmentation's answer."""
    file = io.BytesIO()
    PIL.Image.fromarray(np.array(rows, np.uint8)).save(file, "PNG")
    return {"predictions": [], "mask": base64.b64encode(file.getvalue()).decode()}


def test_a_classifier_that_lost_eight_of_ten_is_measurably_worse() -> None:
    """Losing six may be chance among three versions, and the order of other classes doesn't matter."""
    good = [classes(0, 1, 2)] * 10
    answers = {
        "a": good,
        "eight": [classes(1, 0, 2)] * 8 + good[:2],
        "six": [classes(1, 0, 2)] * 6 + good[:4],
        "rest": [classes(0, 2, 1)] * 10,
    }
    verdicts = judge("image-classification", answers, "a", ["c0"] * 10)
    assert {name: v["test"]["worse"] for name, v in verdicts.items()} == {
        **{"a": False, "eight": True, "six": False, "rest": False}
    }
    assert verdicts["six"]["accuracy"]["value"] == 0.4
    assert verdicts["six"]["agreement"]["share"]["value"] == 0.4
    assert verdicts["rest"]["agreement"]["largest_difference"] == pytest.approx(0.1)
    assert verdicts["six"]["test"]["text"] == (
        "0 gained, 6 lost: -60.0% (-83.2% to -15.6%); "
        "10 samples would show a loss of 76% in 80 of 100 cases"
    )


def test_without_labels_the_reference_is_the_truth() -> None:
    """A third of the same answers is certainly below the bound."""
    verdicts = judge(
        "image-classification",
        {"a": [classes(0)] * 9, "b": [classes(1)] * 6 + [classes(0)] * 3},
        "a",
        [None] * 9,
    )
    assert verdicts["b"]["accuracy"] is None
    assert verdicts["b"]["test"]["worse"]
    assert verdicts["b"]["test"]["text"] == (
        "3 of 9 answers are the same: 33.3% (12.1% to 64.6%) against a bound of 95.0%; "
        "9 samples would show a disagreement of 42% in 80 of 100 cases"
    )


def test_a_label_may_be_a_number() -> None:
    """The class's index counts as its name."""
    verdicts = judge("audio-classification", {"a": [classes(3)]}, "a", ["3"])
    assert verdicts["a"]["accuracy"]["value"] == 1.0


def test_numeric_labels_are_not_indices() -> None:
    """With labels from 1 to 4, a version that answers one too high is always wrong."""

    def numbered(best: int) -> dict[str, Any]:
        order = [best, *(i for i in range(4) if i != best)]
        return {
            "predictions": [
                {"label": str(i + 1), "index": i, "score": 1 - n / 10}
                for n, i in enumerate(order)
            ]
        }

    answers = {
        "a": [numbered(i) for i in (0, 1, 2)],
        "high": [numbered(i) for i in (1, 2, 3)],
    }
    verdicts = judge("image-classification", answers, "a", ["1", "2", "3"])
    assert [v["accuracy"]["value"] for v in verdicts.values()] == [1.0, 0.0]
    assert [v["agreement"]["share"]["value"] for v in verdicts.values()] == [1.0, 0.0]


def test_unknown_labels_are_not_a_truth() -> None:
    """Otherwise all versions would score 0, and none would be worse."""
    with pytest.raises(
        CommandError,
        match="no version knows any of the labels of the data, such as 'zero'",
    ):
        judge(
            "image-classification",
            {"a": [classes(0)], "b": [classes(1)]},
            "a",
            ["zero"],
        )


def test_top_5_and_f1() -> None:
    """The fifth of six is within five; F1 is the mean over true and answered classes."""
    answers = [
        classes(0, 1, 2, 3, 4, 5),
        classes(1, 2, 3, 4, 0, 5),
        classes(1, 0, 2, 3, 4, 5),
    ]
    figures = measure_for("image-classification").overall(
        answers,
        [
            frozenset([0]),
            frozenset([0]),
            frozenset([1]),
        ],
    )
    assert figures == {"top-5": 1.0, "F1": pytest.approx((2 / 3 + 2 / 3) / 2)}


def test_f1_agrees_with_scikit_learn() -> None:
    """The macro mean includes classes that are only answered, or only true."""
    generator = np.random.default_rng(7)
    actual = generator.integers(0, 6, 40)
    answered = generator.integers(2, 9, 40)
    figures = measure_for("text-classification").overall(
        [classes(index) for index in answered.tolist()],
        [frozenset([index]) for index in actual.tolist()],
    )
    assert figures["F1"] == pytest.approx(f1_score(actual, answered, average="macro"))


def lettered(best: int) -> dict[str, Any]:
    """Return the answer of a classifier with classes A, a and B."""
    order = [best, *(index for index in range(3) if index != best)]
    return {
        "predictions": [
            {"label": "AaB"[i], "index": i, "score": 1 - n / 10}
            for n, i in enumerate(order)
        ]
    }


def test_letter_case_distinguishes_classes() -> None:
    """If the model distinguishes A and a, the truth and F1 do, too."""
    answers = {
        "right": [lettered(i) for i in (0, 1, 2)],
        "small": [lettered(i) for i in (1, 1, 2)],
    }
    verdicts = judge("image-classification", answers, "right", ["A", "a", "B"])
    assert [v["accuracy"]["value"] for v in verdicts.values()] == [
        1.0,
        pytest.approx(2 / 3),
    ]
    assert verdicts["small"]["accuracy"]["figures"]["F1"] == pytest.approx(
        (0 + 2 / 3 + 1) / 3
    )


def test_all_truths_are_read_in_one_way() -> None:
    """Numbers are labels among labels, else indices; case is ignored as a last resort."""
    labels = list(enumerate(["1", "2", "3"]))
    assert read_classes(["1", "3", "0"], labels) == [
        {0},
        {2},
        set(),
    ]
    assert read_classes(["0", "1", "0"], labels) == [
        {0},
        {1},
        {0},
    ]
    assert read_classes(["CAT", " Dog"], [(0, "cat"), (1, "dog")]) == [{0}, {1}]
    assert read_classes(["cat", "2"], [(0, "Cat"), (1, "dog")]) == [{0}, set()]
    assert read_classes(
        ["crane"],
        [
            (0, "crane"),
            (1, "cat"),
            (2, "crane"),
        ],
    ) == [{0, 2}]


def test_a_regression_error_is_measured() -> None:
    """Ten per cent more error counts; rounding doesn't, however certain it is."""
    truth = [str(number) for number in range(1, 31)]
    exact = [value(float(number) + 1) for number in range(1, 31)]
    worse = [value(float(number) + 1.1) for number in range(1, 31)]
    rounded = [value(float(number) + 1 + 1e-7) for number in range(1, 31)]
    verdicts = judge(
        "tabular-regression",
        {
            "a": exact,
            "worse": worse,
            "rounded": rounded,
        },
        "a",
        truth,
    )
    assert verdicts["a"]["accuracy"]["value"] == pytest.approx(1.0)
    assert not verdicts["a"]["accuracy"]["more_is_better"]
    assert verdicts["worse"]["test"]["worse"]
    assert not verdicts["rounded"]["test"]["worse"]
    assert verdicts["rounded"]["agreement"]["share"]["value"] == 1.0


def test_rounding_is_not_a_loss_beside_a_perfect_reference() -> None:
    """Relative to an error of 0 any rounding is infinite; a real loss still counts."""
    truth = [str(number) for number in range(1, 31)]
    answers = {
        "a": [value(float(number)) for number in truth],
        "rounded": [value(float(number) + 1e-6) for number in truth],
        "worse": [value(float(number) + 0.5) for number in truth],
    }
    verdicts = judge("tabular-regression", answers, "a", truth)
    assert {name: v["test"]["worse"] for name, v in verdicts.items()} == {
        "a": False,
        "rounded": False,
        "worse": True,
    }
    few = judge(
        "tabular-regression",
        {name: each[:1] for name, each in answers.items()},
        "a",
        truth[:1],
    )
    assert not few["worse"]["test"]["worse"]
    assert (
        few["worse"]["test"]["text"]
        == "mean absolute error +0.5; 1 sample cannot show a loss, which takes 6"
    )
    # As the score is shown.
    assert verdicts["worse"]["test"]["text"].startswith("mean absolute error +0.5;")
    assert "; a change below 0.1% counts as none" in verdicts["rounded"]["test"]["text"]


def test_average_precision() -> None:
    """For right, wrong, right the precision is 1 up to half the recall, then 2/3."""
    answer = {
        "predictions": [box("cat", 0, 0.9), box("cat", 50, 0.8), box("cat", 101, 0.7)]
    }
    truth = [true_box("cat", 0), true_box("cat", 100)]
    measure = measure_for("object-detection")
    assert measure.overall([answer], [truth])["mAP at 0.5"] == pytest.approx(
        (51 + 50 * 2 / 3) / 101
    )
    assert measure.score(answer, truth) == pytest.approx(2 * 2 / 5)
    # 9 of 11 pixels overlap, so the second box no longer counts from an IoU of 0.85 on.
    assert measure.overall([answer], [truth])["mAP"] == pytest.approx(
        (7 * (51 + 50 * 2 / 3) / 101 + 3 * 51 / 101) / 10
    )


def random_box(generator: random.Random) -> dict[str, Any]:
    """Return a random true box."""
    return {
        "label": generator.choice(["cat", "dog"]),
        "x": generator.uniform(0, 200),
        "y": generator.uniform(0, 200),
        "width": generator.uniform(20, 99),
        "height": generator.uniform(20, 99),
    }


def random_detection(generator: random.Random, true: dict[str, Any]) -> dict[str, Any]:
    """Return a detection near a true box, sometimes with another label."""
    place = {}
    for key in ("x", "y", "width", "height"):
        place[key] = true[key] + generator.gauss(0, 5)
    label = true["label"]
    if generator.random() >= 0.8:
        label = "cow"
    return {
        "label": label,
        "score": generator.random(),
        "box": place,
    }


def scene(seed: int) -> tuple[list[list[Any]], list[list[Any]]]:
    """Return generated detections and true boxes of eight pictures."""
    generator = random.Random(seed)
    answers = []
    truths = []
    for _ in range(8):
        boxes = [random_box(generator) for _ in range(generator.randrange(5))]
        entries = [random_detection(generator, true) for true in boxes * 2]
        answers.append(sorted(entries, key=lambda entry: -entry["score"]))
        truths.append(boxes)
    return answers, truths


@pytest.mark.parametrize(
    ("seed", "at_half", "whole"),
    [(0, 0.7066831683168316, 0.2718290043290043), (1, 0.9017326732673266, 0.5082260726072607),
     (2, 0.9579207920792079, 0.5727604903347479),],
)  # fmt: skip
def test_average_precision_agrees_with_coco(
    seed: int, at_half: float, whole: float
) -> None:
    """The numbers are those of pycocotools 2.0 on the same boxes."""
    assert precision_figures(*scene(seed)) == {
        "mAP at 0.5": pytest.approx(at_half),
        "mAP": pytest.approx(whole),
    }


def test_uncertain_detections_count_for_the_average_precision_only() -> None:
    """Clients don't get them, so a picture's F1 and the agreement exclude them."""
    measure = measure_for("object-detection")
    unsure = {"predictions": [], "further": [box("cat", 0, 0.1)]}
    assert measure.score(unsure, [true_box("cat", 0)]) == 0.0
    assert measure.overall([unsure], [[true_box("cat", 0)]])["mAP"] == 1.0
    answers = {
        "a": [{"predictions": [box("cat", 0)]}],
        "b": [{**unsure, "predictions": [box("cat", 0)]}],
    }
    assert (
        judge("object-detection", answers, "a", [None])["b"]["agreement"][
            "largest_difference"
        ]
        == 0.0
    )


def test_iou_agrees_with_scikit_learn() -> None:
    """It is a picture's mean over the classes in either mask."""
    generator = np.random.default_rng(3)
    predicted = generator.choice([0, 1, 4], (12, 9))
    actual = generator.choice([0, 4, 7], (12, 9))
    expected = jaccard_score(
        actual.ravel(), predicted.ravel(), average="macro", zero_division=0
    )
    assert measure_for("image-segmentation").score(
        mask(predicted.tolist()), actual
    ) == pytest.approx(expected)


def test_a_box_is_matched_once_and_only_by_its_label() -> None:
    """The second detection of one object is a mistake."""
    measure = measure_for("object-detection")
    twice = {"predictions": [box("cat", 0), box("cat", 1)]}
    assert measure.score(twice, [true_box("cat", 0)]) == pytest.approx(2 / 3)
    assert measure.score(twice, [true_box("dog", 0)]) == 0.0
    assert measure.score({"predictions": []}, []) == 1.0


def test_masks_are_compared_at_the_truths_size() -> None:
    """A mask of half the size is enlarged; pixels of 255 are ignored."""
    measure = measure_for("image-segmentation")
    truth = np.array([[0, 0, 1, 1], [0, 0, 1, 255]], np.uint8)
    assert measure.score(mask([[0, 1]]), truth) == 1.0
    assert measure.score(mask([[0, 0]]), truth) == pytest.approx((4 / 7 + 0) / 2)
    assert measure.overall([mask([[0, 1]])], [truth]) == {"IoU over all pixels": 1.0}


def test_texts_are_compared_by_words() -> None:
    """Case and punctuation are ignored."""
    measure = measure_for("question-answering")
    answer = {"predictions": [{"answer": "The red house."}]}
    assert measure.score(answer, "red house") == pytest.approx(2 * 2 / 5)
    assert measure.overall([answer], ["the red house"]) == {"exact": 1.0}


def test_other_answers_are_compared_by_their_numbers() -> None:
    """Tensors may differ by one per cent of the largest number, but not in shape."""

    def tensors(*values: float) -> dict[str, Any]:
        return {
            "outputs": [{"name": "y", "shape": [len(values)], "values": list(values)}]
        }

    answers = {
        "a": [tensors(1, 100)],
        "near": [tensors(1.9, 100)],
        "far": [tensors(3, 100)],
        "other": [tensors(1)],
    }
    verdicts = judge("tensors", answers, "a", [None])
    assert [v["agreement"]["share"]["value"] for v in verdicts.values()] == [
        1.0,
        1.0,
        0.0,
        0.0,
    ]
    assert verdicts["other"]["agreement"]["largest_difference"] is None


def test_a_version_that_fails_is_worse() -> None:
    """A few samples are enough; samples on which the reference fails are ignored."""
    error = {"error": "the model failed on this input"}
    answers = {
        "a": [classes(0), error],
        "b": [error, classes(0)],
        "c": [classes(0), error],
    }
    verdicts = judge("image-classification", answers, "a", ["c0", "c0"])
    assert verdicts["b"]["test"] == {
        "worse": True,
        "text": "it fails on 1 of 1 samples: the model failed on this input",
    }
    assert verdicts["c"]["accuracy"]["value"] == 1.0


def differing(number: int, of: int) -> dict[str, list[dict[str, Any]]]:
    """Return answers of a reference and of a version that differs in some."""
    return {
        "a": [classes(0)] * of,
        "b": [classes(1)] * number + [classes(0)] * (of - number),
    }


@pytest.mark.parametrize(
    ("number", "of", "worse"),
    [
        (5, 10, True),
        (6, 500, False),
        (2, 30, False),
    ],
)
def test_unlabelled_answers_are_judged_by_their_share(
    number: int, of: int, worse: bool
) -> None:
    """Half of ten is worse; one in a hundred isn't, however certain it is."""
    verdicts = judge("image-classification", differing(number, of), "a", [None] * of)
    assert verdicts["b"]["test"]["worse"] is worse
    assert "against a bound of 95.0%" in verdicts["b"]["test"]["text"]


@pytest.mark.parametrize(
    ("of", "is_within"),
    [
        (10, False),
        (1000, True),
    ],
)
def test_a_margin_needs_proof(of: int, is_within: bool) -> None:
    """Ten equal answers don't show that fewer than 2 % are lost; a thousand do."""
    answers = {name: [classes(0)] * of for name in "abc"}
    for truths in ([None] * of, ["c0"] * of):
        verdicts = judge("image-classification", answers, "a", truths, 0.02)
        for name in "bc":
            assert verdicts[name]["test"]["margin"]["is_within"] is is_within
            assert not verdicts[name]["test"]["worse"]


def test_a_regressions_margin_is_relative_to_its_error() -> None:
    """A tenth more error isn't within 1 %; a hundredth less is."""
    random_ = random.Random(3)
    truth = [str(number) for number in range(40)]
    answers: dict[str, list[dict[str, Any]]] = {
        "a": [],
        "more": [],
        "less": [],
    }
    for number in range(40):
        error = random_.uniform(10, 20)
        answers["a"].append(value(number + error))
        answers["more"].append(value(number + error * 1.1))
        answers["less"].append(value(number + error * 0.99))
    verdicts = judge("tabular-regression", answers, "a", truth, 0.01)
    assert not verdicts["more"]["test"]["margin"]["is_within"]
    assert verdicts["less"]["test"]["margin"]["is_within"]


def test_several_versions_are_judged_together() -> None:
    """A p of 0.03 is a loss for one version, but not for the best of four."""
    good = [classes(0)] * 10
    lost = [classes(1)] * 6 + good[:4]
    alone = judge("image-classification", {"a": good, "b": lost}, "a", ["c0"] * 10)
    assert alone["b"]["test"]["worse"]
    several = {
        "a": good,
        "b": lost,
        "c": good,
        "d": good,
    }
    verdicts = judge("image-classification", several, "a", ["c0"] * 10)
    assert not verdicts["b"]["test"]["worse"]
    assert verdicts["b"]["test"]["adjusted_p"] == pytest.approx(3 / 32)
