"""Read scenario files, and explain each mistake."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import ROOT
from pocketserve_simulate.phone.events import KINDS
from pocketserve_simulate.scenarios.scenario import (
    DISTURBANCES,
    MAX_FILE_BYTES,
    Scenario,
    ScenarioError,
    Stream,
    parse_scenario,
    read_scenario,
    shipped,
)

STREAM = '[[streams]]\nname = "a"\nmodel = "petals"\nrate = 5\n'
WHOLE = f'seconds = 20\n{STREAM}[[events]]\nkind = "freeze"\nat = 3\nseconds = 2\n'


def parse(text: str) -> Scenario:
    return parse_scenario(text.encode(), "s.toml")


def test_omitted_keys_have_defaults() -> None:
    scenario = parse(WHOLE)
    assert scenario.name == "s"
    assert scenario.device == "mid"
    assert scenario.seconds == 20
    assert scenario.recovery == 2.0
    assert [(event.kind, event.at, event.seconds) for event in scenario.events] == [
        ("freeze", 3, 2)
    ]
    assert scenario.streams == (
        Stream(
            "a", "petals", 5, "socket", "", "tensors", 1, 4, 2.0, 5.0, 5.0, 0, False, ()
        ),
    )
    assert scenario.streams[0].max_call_s == 15


def test_every_key_is_read() -> None:
    scenario = parse(
        'description = "d"\ndevice = "budget"\nseconds = 9.5\nrecovery = 1\n'
        '[server]\nload = ["petals"]\noptions = ["--queue-limit", "4"]\n'
        '[[streams]]\nname = "x"\nclient = "http"\nmodel = "digits"\nversion = "onnx"\nask = "pictures"\nrate = 30\n'
        'parallel = 2\ndeadline = 0.5\ntimeout = 3\nreconnect = 0\npriority = 1\nfresh = true\nallow = ["SUPERSEDED"]\n'
        '[[events]]\nkind = "vanishing"\nat = 4\nseconds = 1\n[[events]]\nkind = "kill"\nat = 1\nseconds = 0.5\n'
        f"{STREAM}"
    )
    assert scenario.options == ("--queue-limit", "4")
    assert scenario.streams[0].allow == ("SUPERSEDED",)
    assert scenario.streams[0].reconnect == 0
    assert [event.kind for event in scenario.events] == ["kill", "vanishing"], (
        "by the time at which they begin"
    )


NO_DEVICE = "s.toml: device must be one of budget, mid, flagship"
NO_KIND = f"s.toml: events[0].kind must be one of {', '.join((*KINDS, *DISTURBANCES))}"
MISTAKES = {
    "seconds = ": "s.toml: not a TOML file",
    STREAM: "s.toml: seconds is missing",
    f"seconds = 0\n{STREAM}": "s.toml: seconds must be a number from 1 to 3600, not 0",
    "seconds = 9": "s.toml: streams must be 1 to 16 tables ([[streams]]), not 0",
    f"seconds = 9\n{STREAM}{STREAM}": "s.toml: streams holds two called 'a'",
    f'seconds = 9\ndevice = "ultra"\n{STREAM}': f"{NO_DEVICE}, not 'ultra'",
    f'seconds = 9\ndevice = "bugdet"\n{STREAM}': f"{NO_DEVICE}, not 'bugdet'; did you mean 'budget'?",
    f"secnds = 9\nseconds = 9\n{STREAM}": "s.toml: unknown key secnds; did you mean 'seconds'?",
    f"seconds = 9\n{STREAM}rte = 4\n": "s.toml: unknown key streams[0].rte; did you mean 'rate'?",
    f"seconds = 9\n[server]\nprot = 1\n{STREAM}": "s.toml: unknown key server.prot; known keys are options, load",
    'seconds = 9\n[[streams]]\nname = "a"\nrate = 5\n': "s.toml: streams[0].model is missing",
    f'seconds = 9\n{STREAM}client = "udp"\n': "s.toml: streams[0].client must be one of socket, http, not 'udp'",
    f"seconds = 9\n{STREAM}rows = 257\n": "s.toml: streams[0].rows must be a whole number from 1 to 256, not 257",
    f'seconds = 9\n{STREAM}allow = ["BUSY"]\n': "s.toml: streams[0].allow holds 'BUSY', which is not an error code",
    WHOLE.replace("freeze", "freez"): f"{NO_KIND}, not 'freez'; did you mean 'freeze'?",
    WHOLE.replace("freeze", "flood"): f"{NO_KIND}, not 'flood'",
    WHOLE.replace(
        "at = 3", "at = 17"
    ): "s.toml: events[0].seconds must end it by 18 s, so that there is time to see",
    WHOLE.replace("at = 3\n", ""): "s.toml: events[0].at is missing",
    WHOLE.replace("freeze", "vanishing").replace(
        "rate = 5", 'rate = 5\nask = "pictures"'
    ): (
        "s.toml: events holds 'vanishing', which sends the requests of a stream of tensors, and there is none"
    ),
    f'{WHOLE}[[events]]\nkind = "squatter"\nat = 4\nseconds = 2\n'.replace(
        "freeze", "squatter"
    ): ("s.toml: events holds two of kind 'squatter' at once"),
    f"{WHOLE}degrees = 4\n": "s.toml: events[0].kind 'freeze' cannot be: ",
    f"{WHOLE}degrees = 4\n".replace(
        "freeze", "vanishing"
    ): "s.toml: unknown key events[0].degrees",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_named(text: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse(text)
    assert str(caught.value).startswith(MISTAKES[text])


VALUES = st.recursive(
    st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    [
        "description",
        "device",
        "seconds",
        "recovery",
        "name",
        "client",
        "model",
        "ask",
        "rate",
        "rows",
        "parallel",
        "fresh",
        "allow",
        "kind",
        "at",
        "ports",
    ]
)
LINES = st.lists(
    st.sampled_from(["[server]", "[[streams]]", "[[events]]"])
    | st.builds(lambda key, value: f"{key} = {json.dumps(value)}", KEYS, VALUES),
    max_size=12,
)


@given(LINES.map("\n".join).map(str.encode) | st.binary(max_size=200))
def test_any_file_is_read_or_refused(content: bytes) -> None:
    said = ""
    try:
        parse_scenario(content, "s.toml")
    except ScenarioError as error:
        said = str(error)
    assert not said or said.startswith("s.toml: ")


def test_a_file_that_is_too_large_or_missing_is_refused(tmp_path: Path) -> None:
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(
        ScenarioError, match=r"large\.toml: a scenario has 65536 bytes at most"
    ):
        read_scenario(str(large))
    for name in (str(tmp_path / "none.toml"), "comute", "\0", str(tmp_path)):
        with pytest.raises(
            ScenarioError,
            match=r"is not a scenario file and none of camera-live, commute, worst-day",
        ):
            read_scenario(name)


@pytest.mark.parametrize("name", shipped())
def test_shipped_scenarios_are_valid(name: str) -> None:
    """Each begins with its purpose and takes less than a minute."""
    scenario = read_scenario(name)
    assert scenario.name == name
    assert scenario.description
    assert scenario.seconds <= 45
    assert len({stream.client for stream in scenario.streams}) == 2, (
        "over both transports"
    )


def test_three_are_shipped() -> None:
    assert shipped() == ["camera-live", "commute", "worst-day"]


def test_the_documented_scenario_is_valid() -> None:
    text = (ROOT / "docs" / "scenarios.md").read_text(encoding="utf-8")
    (shown,) = re.findall(
        r"^```toml file=scenario.toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
    )
    assert parse(shown).streams[0].allow == ("QUEUE_FULL",)
    for name in shipped():
        scenario = read_scenario(name)
        assert f"| `{name}` | {scenario.device} | {scenario.seconds:g} |" in text
