"""Measure and place the companion app's views by Android's rules.

All lengths are in dp. Views and attributes that the app doesn't use are not supported.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from app_resources import Phone, Resources, dp

Measure = Callable[[str, float, bool], float]
"""The width of a text, for a size of letters, medium or not."""
TARGET_DP = 48.0
BACK_DP = 72.0
"""The start of a toolbar's title beside an arrow."""
LINE, FONT_PADDING = 1.172, 0.16
"""Roboto's line height and a TextView's padding, relative to the size of the letters."""


class Spec(NamedTuple):
    """A parent's limit in one direction."""

    mode: Literal["exact", "most", "free"]
    size: float


class Sides(NamedTuple):
    """Distances from four sides."""

    left: float = 0.0
    top: float = 0.0
    right: float = 0.0
    bottom: float = 0.0

    @property
    def across(self) -> float:
        """Return left and right together."""
        return self.left + self.right

    @property
    def along(self) -> float:
        """Return top and bottom together."""
        return self.top + self.bottom


class Look(NamedTuple):
    """The theme's defaults for a kind of view with text.

    Attributes:
        letters: size in sp.
        beside: width of the arrow, box or track beside the text.
        single: whether the text keeps to one line.
    """

    letters: float = 14.0
    medium: bool = False
    padding: Sides = Sides()
    beside: float = 0.0
    single: bool = False
    least: float = 0.0


LOOKS = {
    "TextView": Look(),
    "Button": Look(medium=True, padding=Sides(12, 10, 12, 10), least=88.0),
    "CheckBox": Look(beside=32.0),
    "EditText": Look(letters=18.0, padding=Sides(4, 10, 4, 11), single=True),
    "Spinner": Look(letters=16.0, padding=Sides(8, 4, 8, 4), beside=32.0),
    "Switch": Look(beside=55.0, padding=Sides(0, 4, 0, 4)),
    "Toolbar": Look(letters=20.0, medium=True, padding=Sides(16, 0, 8, 0), single=True),
}
TOUCHED = {"Button", "CheckBox", "EditText", "Spinner", "Switch"}
ROW_TEXTS = (16.0, 14.0)
"""Sizes of the two lines of a list's row."""


@dataclass
class View:
    """A view of a layout, and its place after the layout."""

    kind: str
    attributes: dict[str, str]
    resources: Resources
    children: list[View] = field(default_factory=list)
    text: str = ""
    visible: bool = True
    inset: Sides = Sides()
    rows: list[tuple[str, str]] = field(default_factory=list)
    icon: bool = False
    back: bool = False
    lines: list[str] = field(default_factory=list)
    torn: bool = False
    width: float = 0.0
    height: float = 0.0
    x: float = 0.0
    y: float = 0.0

    @property
    def id(self) -> str:
        """Return its name; empty where it has none."""
        return self.attributes.get("id", "").rpartition("/")[2]

    @property
    def look(self) -> Look:
        """Return the theme's defaults."""
        return LOOKS.get(self.kind, Look())

    @property
    def letters(self) -> float:
        """Return the size of its letters in dp."""
        return self.resources.letters(self.attributes, self.look.letters)

    @property
    def padding(self) -> Sides:
        """Return the padding, with the room of the system's bars."""
        every = self.attributes.get("padding")
        look = self.look.padding
        names = ("paddingStart", "paddingTop", "paddingEnd", "paddingBottom")
        if self.back:
            look = look._replace(left=BACK_DP)
        own = (
            dp(every or self.attributes.get(n, ""), side)
            for n, side in zip(names, look, strict=True)
        )
        return Sides(
            *(side + extra for side, extra in zip(own, self.inset, strict=True))
        )

    @property
    def margin(self) -> Sides:
        """Return the distances to its neighbours."""
        return Sides(
            *(
                dp(self.attributes.get(f"layout_margin{n}", ""))
                for n in ("Start", "Top", "End", "Bottom")
            )
        )

    @property
    def weight(self) -> float:
        """Return its share of the remaining room."""
        return float(self.attributes.get("layout_weight", 0))

    def walk(self) -> Iterator[View]:
        """Yield it and all that are visible below it."""
        if self.visible:
            yield self
            for child in self.children:
                yield from child.walk()

    def find(self, name: str) -> View:
        """Return the view of that name, visible or not."""
        waiting = [self]
        while waiting:
            view = waiting.pop()
            if view.id == name:
                return view
            waiting.extend(view.children)
        raise KeyError(name)


def read(element: ElementTree.Element, resources: Resources) -> View:
    """Make the views of a layout."""
    attributes = resources.attributes(element)
    view = View(element.tag.rpartition(".")[2], attributes, resources)
    view.text = resources.text(attributes.get("text", ""))
    view.visible = attributes.get("visibility") != "gone"
    view.children = [read(child, resources) for child in element]
    return view


def lay_out(root: View, phone: Phone, measure: Measure) -> None:
    """Lay out all visible views on the phone's screen."""
    root.find("bar").inset = Sides(top=phone.status_bar)
    root.find("below_bar").inset = Sides(bottom=phone.navigation_bar)
    _Layout(measure).measure(
        root, Spec("exact", phone.width), Spec("exact", phone.height)
    )
    _place(root, 0.0, 0.0)


class _Layout:
    """The measuring, which needs the widths of texts."""

    def __init__(self, width_of: Measure) -> None:
        self._width_of = width_of

    def measure(self, view: View, width: Spec, height: Spec) -> None:
        if view.kind == "LinearLayout":
            self._linear(view, width, height)
        elif view.children:
            self._frame(view, width, height)
        elif view.kind in LOOKS:
            self._text(view, width, height)
        else:
            room = (width.size, height.size)
            natural = room
            if view.kind == "ProgressBar":
                natural = (0.0, 4.0)
            view.width, view.height = (
                _resolve(natural[0], width),
                _resolve(natural[1], height),
            )

    def _child(
        self,
        view: View,
        child: View,
        width: Spec,
        height: Spec,
        used: tuple[float, float] = (0, 0),
    ) -> None:
        pad = view.padding
        margin = child.margin
        self.measure(
            child,
            _child_spec(
                width,
                pad.across + margin.across + used[0],
                child.attributes["layout_width"],
            ),
            _child_spec(
                height,
                pad.along + margin.along + used[1],
                child.attributes["layout_height"],
            ),
        )

    def _frame(self, view: View, width: Spec, height: Spec) -> None:
        """Measure a FrameLayout, or a ScrollView of any height."""
        children = [child for child in view.children if child.visible]
        inner = height
        if view.kind == "ScrollView":
            inner = Spec("free", 0.0)
        for child in children:
            self._child(view, child, width, inner)
        widest = max(
            (child.width + child.margin.across for child in children), default=0.0
        )
        highest = max(
            (child.height + child.margin.along for child in children), default=0.0
        )
        view.width = _resolve(widest + view.padding.across, width)
        view.height = _resolve(highest + view.padding.along, height)

    def _linear(self, view: View, width: Spec, height: Spec) -> None:
        along = _is_column(view)
        children = [child for child in view.children if child.visible]
        spec = width
        if along:
            spec = height
        pad = view.padding.along if along else view.padding.across
        used = 0.0
        for child in children:
            if not _takes_share_only(child, spec, along):
                offset = (0.0, used) if along else (used, 0.0)
                self._child(view, child, width, height, offset)
                used += _outer(child, along)
        room = spec.size - pad - used
        weights = sum(child.weight for child in children)
        for child in children:
            if child.weight and spec.mode == "exact":
                share = room * child.weight / weights
                self._share(view, child, share, width if along else height)
        total = sum(_outer(child, along) for child in children) + pad
        widest = max((_outer(child, not along) for child in children), default=0.0)
        widest += view.padding.across if along else view.padding.along
        view.width = _resolve(widest if along else total, width)
        view.height = _resolve(total if along else widest, height)

    def _share(self, view: View, child: View, share: float, across: Spec) -> None:
        """Measure a weighted child with its share of the remaining room."""
        along = _is_column(view)
        margin = child.margin.along if along else child.margin.across
        own = Spec("exact", max(0.0, share - margin))
        pads = view.padding.across if along else view.padding.along
        margins = child.margin.across if along else child.margin.along
        other = _child_spec(across, pads + margins, _length(child, not along))
        if along:
            self.measure(child, other, own)
        else:
            self.measure(child, own, other)

    def _text(self, view: View, width: Spec, height: Spec) -> None:
        look = view.look
        pad = view.padding
        size = view.letters
        medium = look.medium or view.attributes.get("textStyle") == "bold"
        room = width.size - pad.across - look.beside
        if width.mode == "free" or look.single:
            room = float("inf")
        view.lines, view.torn = self._wrap(view.text, size, medium, room)
        widths = [self._width_of(line, size, medium) for line in view.lines]
        natural = max(widths, default=0.0) + pad.across + look.beside
        view.width = _resolve(max(look.least, natural), width)
        lines = size * (LINE * max(1, len(view.lines)) + FONT_PADDING)
        least = dp(view.attributes.get("minHeight", "")) + view.inset.top
        view.height = _resolve(max(least, lines + pad.along), height)

    def _wrap(
        self, text: str, size: float, medium: bool, room: float
    ) -> tuple[list[str], bool]:
        """Return the lines, and whether a word had to be torn."""
        lines: list[str] = []
        is_torn = False
        for paragraph in text.split("\n") if text else []:
            line = ""
            for word in paragraph.split(" "):
                longer = word
                if line:
                    longer = f"{line} {word}"
                if self._width_of(longer, size, medium) <= room + 0.01:
                    line = longer
                    continue
                if line:
                    lines.append(line)
                pieces = self._tear(word, size, medium, room)
                is_torn = is_torn or len(pieces) > 1
                lines += pieces[:-1]
                line = pieces[-1]
            lines.append(line)
        return lines, is_torn

    def _tear(self, word: str, size: float, medium: bool, room: float) -> list[str]:
        """Split a word into pieces that fit, of at least one letter."""
        pieces = []
        while len(word) > 1 and self._width_of(word, size, medium) > room + 0.01:
            length = len(word)
            while length > 1 and self._width_of(word[:length], size, medium) > room:
                length -= 1
            pieces.append(word[:length])
            word = word[length:]
        return [*pieces, word]


def _takes_share_only(child: View, spec: Spec, along: bool) -> bool:
    """Return whether a child has no size but its share of the remaining room."""
    is_weighted = child.weight and spec.mode == "exact"
    return bool(is_weighted) and _length(child, along) == "0dp"


def _is_column(view: View) -> bool:
    return view.attributes.get("orientation") == "vertical"


def _length(view: View, along: bool) -> str:
    return view.attributes["layout_height" if along else "layout_width"]


def _outer(view: View, along: bool) -> float:
    if along:
        return view.height + view.margin.along
    return view.width + view.margin.across


def _child_spec(parent: Spec, used: float, length: str) -> Spec:
    room = max(0.0, parent.size - used)
    if length == "match_parent":
        return Spec(parent.mode, room)
    if length == "wrap_content":
        return Spec("free" if parent.mode == "free" else "most", room)
    return Spec("exact", dp(length))


def _resolve(natural: float, spec: Spec) -> float:
    return {"exact": spec.size, "most": min(natural, spec.size), "free": natural}[
        spec.mode
    ]


def _place(view: View, x: float, y: float) -> None:
    """Place a measured view and its children."""
    view.x = x
    view.y = y
    left = x + view.padding.left
    top = y + view.padding.top
    is_list = view.kind == "LinearLayout"
    is_row = is_list and not _is_column(view)
    for child in view.children:
        if not child.visible:
            continue
        margin = child.margin
        down = _offset(view, child, is_row)
        _place(child, left + margin.left, top + margin.top + down)
        if is_row:
            left += child.width + margin.across
        elif is_list:
            top += _outer(child, True)


def _offset(view: View, child: View, is_row: bool) -> float:
    """Return how far below the top its gravity moves a child."""
    slack = view.height - view.padding.along - child.height - child.margin.along
    if is_row:
        gravity = view.attributes.get("gravity", "")
        if gravity in ("center", "center_vertical"):
            return slack / 2
        return 0.0
    if child.attributes.get("layout_gravity") == "bottom":
        return slack
    return 0.0


def faults(root: View, phone: Phone, measure: Measure) -> list[str]:
    """Return problems: cut texts, small targets, hidden views."""
    return [
        f"{view.kind} {view.id or view.text!r}: {fault}"
        for view, fault in _faults(root, phone, measure, phone.height)
    ]


def _faults(
    view: View, phone: Phone, measure: Measure, end: float
) -> Iterator[tuple[View, str]]:
    """Yield the faults of a view and its descendants.

    Args:
        end: where the screen, or its scrolled content, ends.
    """
    if not view.visible:
        return
    for fault in _size_faults(view, phone, end):
        yield view, fault
    if view.lines:
        for fault in _text_faults(view, measure):
            yield view, fault
    inner = end
    if view.kind == "ScrollView":
        inner = float("inf")
    for child in view.children:
        yield from _faults(child, phone, measure, inner)


def _size_faults(view: View, phone: Phone, end: float) -> Iterator[str]:
    if view.width <= 0 or view.height <= 0:
        yield "it has no size"
    if view.x < -0.01 or view.x + view.width > phone.width + 0.01:
        yield "it reaches over a side of the screen"
    if view.y + view.height > end + 0.01:
        yield "it reaches below the screen"
    if view.kind in TOUCHED and min(view.width, view.height) < TARGET_DP - 0.01:
        size = f"{view.width:.0f} x {view.height:.0f} dp"
        yield f"{size} are too small for a finger"


def _text_faults(view: View, measure: Measure) -> Iterator[str]:
    look = view.look
    pad = view.padding
    medium = look.medium or view.attributes.get("textStyle") == "bold"
    room = view.width - pad.across - look.beside
    if view.icon:
        room -= TARGET_DP
    if max(measure(line, view.letters, medium) for line in view.lines) > room + 0.5:
        yield "its text is cut at the side"
    lines = view.letters * (LINE * len(view.lines) + FONT_PADDING)
    if lines + pad.along > view.height + 0.5:
        yield "its text is cut at the bottom"
    if view.torn:
        yield f"a word is torn: {view.lines}"
