"""Placements map between a picture and an input, and agree with the pixels."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketserve.tasks.base import Hints
from pocketserve.tasks.vision.geometry import Area, place
from pocketserve.tasks.vision.pictures import PictureShape, read_picture
from pocketserve.tasks.vision.preprocessing import ImageOptions
from pocketserve_wire import ApiError, ErrorCode

Image = pytest.importorskip("PIL.Image", reason="pictures need Pillow")

SETTINGS = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=150,
)
SIDES = st.integers(1, 5000)
SIZES = st.tuples(SIDES, SIDES)
WAYS = st.sampled_from(["stretch", "crop", "letterbox"])


@st.composite
def placements(draw: st.DrawFn) -> Any:
    """Return a picture, an input and a way of resizing.

    Some have a region or a crop.
    """
    picture = draw(SIZES)
    size = draw(SIZES)
    region = None
    if draw(st.booleans()):
        left = draw(st.integers(0, picture[0] - 1))
        top = draw(st.integers(0, picture[1] - 1))
        region = Area(
            left,
            top,
            draw(st.integers(1, picture[0] - left)),
            draw(st.integers(1, picture[1] - top)),
        )
    return place(picture, size, draw(WAYS), region, draw(st.floats(0.1, 1.0)))


@SETTINGS
@given(placement=placements(), data=st.data())
def test_mapping_a_point_there_and_back(placement: Any, data: st.DataObject) -> None:
    """A point maps back to itself."""
    numbers = st.floats(-1e4, 1e4)
    points = np.array([[data.draw(numbers), data.draw(numbers)] for _ in range(3)])
    back = placement._replace(source=placement.target, target=placement.source)
    np.testing.assert_allclose(
        placement.to_picture(back.to_picture(points)), points, rtol=1e-9, atol=1e-6
    )


@SETTINGS
@given(placement=placements())
def test_placements_are_consistent(placement: Any) -> None:
    """Corners map to corners.

    The source lies in the picture, and its target in the input.
    """
    source = placement.source
    target = placement.target
    assert source.x >= -1e-6
    assert source.y >= -1e-6
    assert source.x + source.width <= placement.picture[0] + 1e-6
    assert source.y + source.height <= placement.picture[1] + 1e-6
    assert target.x >= 0
    assert target.x + target.width <= placement.input[0]
    assert target.y >= 0
    assert target.y + target.height <= placement.input[1]
    corners = np.array(
        [[target.x, target.y], [target.x + target.width, target.y + target.height]]
    )
    wanted = [[source.x, source.y], [source.x + source.width, source.y + source.height]]
    np.testing.assert_allclose(
        placement.to_picture(corners), wanted, rtol=1e-9, atol=1e-6
    )


@SETTINGS
@given(
    placement=placements(), box=st.lists(st.floats(-1e5, 1e5), min_size=4, max_size=4)
)
def test_boxes_stay_on_the_picture(placement: Any, box: list[float]) -> None:
    """Any box is clipped to the picture."""
    (found,) = placement.boxes_to_picture(np.array([box]))
    assert (found >= 0).all()
    assert (found <= np.array([*placement.picture] * 2)).all()


def test_proportions() -> None:
    """Crop and letterbox keep a square a square."""
    for how in ("crop", "letterbox"):
        placement = place((4000, 3000), (224, 224), how)
        scales = (
            placement.source.width / placement.target.width,
            placement.source.height / placement.target.height,
        )
        assert scales[0] == pytest.approx(scales[1], rel=0.01)
    assert place((4000, 3000), (224, 224), "crop", crop_fraction=0.875).source == Area(
        687.5, 187.5, 2625, 2625
    )
    assert place((4000, 3000), (224, 224), "letterbox").target == Area(0, 28, 224, 168)
    assert place((3, 2), (3, 2), "stretch").to_picture(
        np.array([1.5, 2.0])
    ).tolist() == [1.5, 2.0]


# Against the pixels: a white dot is where the placement says


def saved(image: Any, kind: str, orientation: int) -> bytes:
    """Return a file with an orientation tag."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    image.save(file, kind, exif=exif, **({"quality": 95} if kind == "JPEG" else {}))
    return file.getvalue()


TO_STORED = {
    1: None,
    2: 0,
    3: 3,
    4: 1,
    5: 5,
    6: 2,
    7: 6,
    8: 4,
}
"""Pillow's operation that turns an upright picture into the stored one, by orientation.
"""


@pytest.mark.parametrize("region", [None, "100,100,1000,700"])
@pytest.mark.parametrize("how", ["stretch", "crop", "letterbox"])
@pytest.mark.parametrize("orientation", TO_STORED)
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_dot_is_at_its_computed_position(
    kind: str, orientation: int, how: str, region: str | None
) -> None:
    """For every orientation, resizing and region, even if the decoder scales down."""
    upright = Image.new("RGB", (1600, 1200))
    upright.paste((255, 255, 255), (560, 360, 680, 480))  # its centre is at 620, 420
    code = TO_STORED[orientation]
    stored = upright if code is None else upright.transpose(Image.Transpose(code))
    hints = Hints(values={"region": region} if region else {})
    body = memoryview(saved(stored, kind, orientation))
    pixels, placement = read_picture(
        body, PictureShape(320, 200, 3), ImageOptions(resize=how), 10**7, hints
    )
    rows, columns = np.nonzero(pixels[..., 0] > 127)
    center = np.array([columns.mean() + 0.5, rows.mean() + 0.5])
    np.testing.assert_allclose(placement.to_picture(center), [620, 420], atol=4)
    assert placement.picture == (1600, 1200)


@pytest.mark.parametrize(
    "region",
    [
        "",
        "1,2,3",
        "a,b,c,d",
        "nan,0,5,5",
        "0,0,0,5",
        "0,0,5,-5",
        "40,0,5,5",
        "-9,0,5,5",
        "1,2,3,4,5",
    ],
)
def test_invalid_regions_are_rejected(region: str) -> None:
    """A region has four numbers and lies on the picture."""
    body = memoryview(saved(Image.new("RGB", (40, 30)), "PNG", 1))
    with pytest.raises(ApiError) as caught:
        read_picture(
            body,
            PictureShape(8, 8, 3),
            ImageOptions(),
            10**6,
            Hints(values={"region": region}),
        )
    assert caught.value.code is ErrorCode.INVALID_PARAMETER


def test_only_the_region_is_used() -> None:
    """Pixels around it have no effect, and it is clipped at the picture's edge."""
    image = Image.new("RGB", (40, 30), (255, 0, 0))
    image.paste((0, 0, 255), (10, 10, 40, 30))
    body = memoryview(saved(image, "PNG", 1))
    hints = Hints(values={"region": "10,10,99,99"})
    pixels, placement = read_picture(
        body, PictureShape(8, 8, 3), ImageOptions(), 10**6, hints
    )
    assert (pixels == (0, 0, 255)).all()
    assert placement.source == Area(10, 10, 30, 20)
