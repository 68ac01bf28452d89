"""Read samples in every accepted form."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import PIL.Image
import pytest

from conftest import MODELS, ROOT
from pocketserve_lab.compare.samples import (
    DataSample,
    Facts,
    SampleError,
    hash_samples,
    read_samples,
    sample_files,
)

DIGITS = Facts("image-classification", [str(digit) for digit in range(10)])
PETS = Facts("object-detection", ["cat", "dog"])
MASKS = Facts("image-segmentation")
FLOWERS = Facts(
    "tabular-regression",
    (),
    ("sepal length", "sepal width", "petal length"),
    "petal width",
)


def write(folder: Path, files: dict[str, str]) -> Path:
    """Write text files below a folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def truths(
    data: Path, facts: Facts = DIGITS, limit: int = 100
) -> list[tuple[str, Any]]:
    """Return the names and truths of all samples."""
    return [(sample.name, sample.truth) for sample in read_samples(data, facts, limit)]


def test_the_embedded_samples_are_labelled_by_their_names() -> None:
    """``7.png`` shows a seven."""
    assert truths(MODELS / "digits" / "samples") == [
        (f"{digit}.png", str(digit)) for digit in range(10)
    ]


def test_names_that_begin_with_a_label(tmp_path: Path) -> None:
    """The longest label counts; if one file has none, names aren't labels."""
    facts = Facts("image-classification", ["cat", "cat fish", "dog"])
    write(
        tmp_path,
        {
            "cat.png": "",
            "Cat fish-2.png": "",
            "dog_b.png": "",
            ".hidden": "",
            "readme.md": "",
        },
    )
    assert [truth for _, truth in truths(tmp_path, facts)] == ["cat fish", "cat", "dog"]
    write(tmp_path, {"photo.png": ""})
    assert {truth for _, truth in truths(tmp_path, facts)} == {None}


def test_case_in_names_distinguishes_labels(tmp_path: Path) -> None:
    """This applies if the model distinguishes them, too."""
    write(tmp_path, {"a-1.png": "", "A-1.png": ""})
    facts = Facts("image-classification", ["A", "a"])
    assert truths(tmp_path, facts) == [("A-1.png", "A"), ("a-1.png", "a")]


def test_one_folder_per_label(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "3/a.png": "",
            "3/b.png": "",
            "5/a.png": "",
        },
    )
    assert truths(tmp_path) == [
        ("3/a.png", "3"),
        ("3/b.png", "3"),
        ("5/a.png", "5"),
    ]


def test_a_list_of_labels(tmp_path: Path) -> None:
    """``labels.csv`` lists the files; others are ignored."""
    write(
        tmp_path,
        {
            "a.png": "",
            "b.png": "",
            "c.png": "",
            "labels.csv": "file,label\na.png,4\nb.png,2\n",
        },
    )
    assert truths(tmp_path) == [("a.png", "4"), ("b.png", "2")]


def test_boxes_of_a_picture(tmp_path: Path) -> None:
    """Each line is a box; a line without a label means no object."""
    lines = "file,label,x,y,width,height\na.png,cat,1,2,3,4\na.png,dog,5,6,7,8\nb.png,,0,0,0,0\n"
    write(
        tmp_path,
        {
            "a.png": "",
            "b.png": "",
            "labels.csv": lines,
        },
    )
    box = {
        "label": "cat",
        "x": 1.0,
        "y": 2.0,
        "width": 3.0,
        "height": 4.0,
    }
    dog = {
        "label": "dog",
        "x": 5.0,
        "y": 6.0,
        "width": 7.0,
        "height": 8.0,
    }
    assert truths(tmp_path, PETS) == [("a.png", [box, dog]), ("b.png", [])]


def test_masks(tmp_path: Path) -> None:
    """A mask's path is relative to the list."""
    write(
        tmp_path,
        {
            "a.jpg": "",
            "m/a.png": "",
            "labels.csv": "file,mask\na.jpg,m/a.png\n",
        },
    )
    PIL.Image.new("L", (2, 2)).save(tmp_path / "m/a.png")
    assert truths(tmp_path, MASKS) == [("a.jpg", str(tmp_path / "m/a.png"))]


def test_rows_of_features(tmp_path: Path) -> None:
    """Columns are matched by name, and the target's column is the truth."""
    table = (
        write(
            tmp_path,
            {
                "t.csv": "petal width,sepal width,sepal length,petal length\n0.2,3.5,5.1,1.4\n"
            },
        )
        / "t.csv"
    )
    (sample,) = read_samples(table, FLOWERS, 10)
    assert sample.read() == b"[5.1, 3.5, 1.4]"
    assert sample.truth == "0.2"


def test_rows_without_the_features_names(tmp_path: Path) -> None:
    """With one more column than features, the last one is the truth."""
    (sample,) = read_samples(
        write(tmp_path, {"t.csv": "a,b,c,d\n1,2,3,4\n"}) / "t.csv", FLOWERS, 10
    )
    assert sample.read() == b"[1.0, 2.0, 3.0]"
    assert sample.truth == "4"


def test_rows_without_a_header(tmp_path: Path) -> None:
    """The first line is a sample, too; any other single file is one sample."""
    table = write(tmp_path, {"t.csv": "1,2,3,4\n5,6,7,8\n"}) / "t.csv"
    samples = read_samples(table, FLOWERS, 10)
    assert [(sample.read(), sample.truth) for sample in samples] == [
        (b"[1.0, 2.0, 3.0]", "4"),
        (b"[5.0, 6.0, 7.0]", "8"),
    ]
    assert truths(write(tmp_path, {"7-b.png": ""}) / "7-b.png") == [("7-b.png", "7")]


def test_a_folder_of_tables(tmp_path: Path) -> None:
    """Rows are concatenated; tables beside pictures are ignored."""
    write(tmp_path, {"a.csv": "1,2,3\n", "b.csv": "4,5,6\n7,8,9\n"})
    assert [sample.read() for sample in read_samples(tmp_path, FLOWERS, 10)][1:] == [
        b"[4.0, 5.0, 6.0]",
        b"[7.0, 8.0, 9.0]",
    ]
    write(tmp_path, {"7.png": ""})
    assert truths(tmp_path) == [("7.png", "7")]


def test_files_of_samples(tmp_path: Path) -> None:
    """Subfolders count, documents and hidden files don't; the hash covers contents."""
    write(
        tmp_path,
        dict.fromkeys(
            ("a/1.png", "b/2.png", "README.md", ".hidden.png", "b/.git/x"), "x"
        ),
    )
    files = sample_files(tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in files] == [
        "a/1.png",
        "b/2.png",
    ]
    samples = [DataSample(path.name, path) for path in files]
    before = hash_samples(samples)
    (tmp_path / "a/1.png").write_text("other")
    assert hash_samples(samples) != before


def test_texts(tmp_path: Path) -> None:
    """The input is the column ``text``."""
    table = write(tmp_path, {"t.csv": 'text,label\n"well, good",positive\n'}) / "t.csv"
    (sample,) = read_samples(table, Facts("text-classification"), 10)
    assert sample.read() == b"well, good"
    assert sample.truth == "positive"


def test_a_limit_takes_evenly_spaced_samples(tmp_path: Path) -> None:
    """A folder is often sorted by label."""
    write(
        tmp_path,
        {f"{digit}/{number}.png": "" for digit in range(10) for number in range(10)},
    )
    assert [truth for _, truth in truths(tmp_path, limit=10)] == [
        str(digit) for digit in range(10)
    ]


@pytest.mark.parametrize(
    ("files", "name", "reason"),
    [
        ({}, "", "has no samples"),
        ({}, "x.txt", "are neither a file nor a folder"),
        ({"t.csv": "file,label\n"}, "t.csv", "a line for each sample"),
        (
            {"t.csv": "file,label\ngone.png,3\n"},
            "t.csv",
            "names 'gone.png', which is not beside it",
        ),
        ({"t.csv": "a,b,c,d\n1,2,3\n"}, "t.csv", "line 2 has 3 cells, the first 4"),
        ({"t.csv": "a,b,c,d\n1,2,x,4\n"}, "t.csv", "'x' is not a number"),
        ({"t.csv": "a,b\n1,2\n"}, "t.csv", "2 columns for the 3 features"),
    ],
    ids=["empty", "gone", "no lines", "missing file", "uneven", "words", "too few"],
)
def test_unusable_data_is_explained(
    files: dict[str, str], name: str, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(SampleError, match=reason):
        read_samples(write(tmp_path, files) / name, FLOWERS, 10)


BOXES = "file,label,x,y,width,height\n"


@pytest.mark.parametrize(
    ("facts", "files", "reason"),
    [
        (
            DIGITS,
            {"zero/a.png": "", "one/a.png": ""},
            "one/a.png: the label 'one' is none of the model's: 0, 1, 2",
        ),
        (
            DIGITS,
            {"a.png": "", "labels.csv": "file,label\na.png,10\n"},
            "a.png: the label '10' is none",
        ),
        (
            PETS,
            {"a.png": "", "labels.csv": "file,label\na.png,cat\n"},
            "a.png: it needs the columns x, y, width",
        ),
        (
            PETS,
            {"a.png": "", "labels.csv": BOXES + "a.png,cow,1,2,3,4\n"},
            "the label 'cow' is none .*: cat, dog",
        ),
        (
            PETS,
            {"a.png": "", "labels.csv": BOXES + "a.png,cat,nan,2,3,4\n"},
            "the box of 'cat' needs finite numbers",
        ),
        (
            MASKS,
            {"a.png": "", "labels.csv": "file,mask\na.png,gone.png\n"},
            "gone.png' cannot be opened",
        ),
    ],
    ids=["folders", "index", "no boxes", "box's label", "box", "mask"],
)
def test_truths_of_another_task_are_refused(
    facts: Facts, files: dict[str, str], reason: str, tmp_path: Path
) -> None:
    """The first one is named before anything is measured."""
    with pytest.raises(SampleError, match=reason):
        read_samples(write(tmp_path, files), facts, 10)


EXAMPLES = [
    Facts("image-classification", ["cat", "dog"]),
    Facts("object-detection", ["car", "person"]),
    Facts("image-segmentation"),
    Facts("text-classification", ["Negative", "Positive"]),
    Facts("question-answering"),
    Facts("speech-to-text"),
    Facts(
        "tabular-regression",
        (),
        ("sepal_length", "sepal_width", "petal_length"),
        "petal_width",
    ),
]


def test_the_examples_of_the_document(tmp_path: Path) -> None:
    """Each is read for its task, and every sample has a truth."""
    tables = re.findall(
        r"```csv\n(.*?)```", (ROOT / "docs" / "compare.md").read_text(), re.DOTALL
    )
    assert len(tables) == len(EXAMPLES)
    for facts, table in zip(EXAMPLES, tables, strict=True):
        folder = tmp_path / facts.task
        names = re.findall(r"^[a-z/]+\.(?:jpg|wav)", table, re.MULTILINE)
        files = dict.fromkeys(names, "")
        write(folder, {**files, "labels.csv": table})
        PIL.Image.new("L", (2, 2)).save(folder / "street-mask.png")
        samples = read_samples(folder if files else folder / "labels.csv", facts, 100)
        assert samples and all(sample.truth is not None for sample in samples), (
            facts.task
        )


def test_a_true_value_that_is_not_a_number_is_refused(tmp_path: Path) -> None:
    """The message names its line; an empty cell means unknown."""
    table = write(tmp_path, {"t.csv": "a,b,c,d\n1,2,3,\n1,2,3,x\n"}) / "t.csv"
    with pytest.raises(
        SampleError, match="line 3: the true value 'x' is not a finite number"
    ):
        read_samples(table, FLOWERS, 10)
    assert truths(table, FLOWERS, 1) == [("line 2", None)]


def test_folders_are_classes_only_for_classifiers(tmp_path: Path) -> None:
    assert truths(write(tmp_path, {"first/a.jpg": ""}), MASKS) == [
        ("first/a.jpg", None)
    ]
