"""Run the page's modules in Node with stand-ins for their imports."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from places import ROOT
from pocketserve.tasks.speech.subtitles import Cue, subtitles

pytestmark = pytest.mark.node
WEB = ROOT / "server" / "pocketserve" / "web"
IMPORTS = re.compile(r"^import .*$", re.MULTILINE)

STAND_INS = """
const html = () => "", nothing = "", update = () => {}, say = () => {}, reveal = () => {};
const summary = () => "", t = () => "", remember = () => {};
const sessionStorage = { getItem: () => null, setItem: () => {} };
const refreshModels = async () => {}, waiting = [], location = { port: "8470" };
class Bench {
  constructor(run) { this.run = run; this.sample = null; }
  submit(sample) { this.sample = sample; return this.run(sample); }
  close() { this.sample = null; }
  stageView() { return null; }
}
const predict = (model, version, bench, sample) => new Promise((resolve, reject) => {
  const answer = () => resolve({ of: sample, predictions: [], timing_ms: {} });
  waiting.push({ asked: `${model} ${version} ${sample}`, answer, fail: () => reject({ code: `of ${sample}` }) });
});
const settle = () => new Promise((done) => setImmediate(done));
"""


def run_module(
    path: str, script: str, folder: Path, more: str = "", base: str = STAND_INS
) -> Any:
    """Run a module between stand-ins and a script; return the script's output."""
    node = shutil.which("node")
    if node is None:
        pytest.fail("node is missing: install nodejs, which runs the page's modules")
    file = folder / "module.mjs"
    file.write_text(
        base + more + IMPORTS.sub("", (WEB / path).read_text("utf-8")) + script
    )
    done = subprocess.run(
        [node, str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("late", ["answer", "fail"])
def test_late_answer_is_not_shown(tmp_path: Path, late: str) -> None:
    """The second of two inputs keeps its answer, whatever happens to the first."""
    script = f"""
    Object.assign(tried, {{ model: "m", version: "1" }});
    const first = bench.submit("A"), second = bench.submit("B");
    waiting[1].answer(); await second;
    waiting[0].{late}(); await first;
    console.log(JSON.stringify([tried.answer.of, tried.failure]));"""
    assert run_module("parts/try.js", script, tmp_path) == ["B", None]


def test_another_model_does_not_get_the_old_sample(tmp_path: Path) -> None:
    """Choosing another model ends a comparison.

    A pending answer is not shown.
    """
    script = """
    Object.assign(compared, { model: "old", versions: ["1", "2"] });
    const asked = bench.submit("A");
    leaveCompare();
    Object.assign(compared, { model: "new", versions: ["1", "3"] });
    waiting[0].answer(); await asked; await settle();
    console.log(JSON.stringify([waiting.map(({ asked }) => asked), [...compared.results]]));"""
    assert run_module("parts/compare.js", script, tmp_path) == [["old 1 A"], []]


def test_every_version_is_queried(tmp_path: Path) -> None:
    script = """
    Object.assign(compared, { model: "old", versions: ["1", "2"] });
    const asked = bench.submit("A");
    waiting[0].answer(); await settle();
    waiting[1].fail(); const last = await asked;
    console.log(JSON.stringify([compared.results.get("1").answer.of, compared.results.get("2").failure, last]));"""
    assert run_module("parts/compare.js", script, tmp_path) == [
        "A",
        {"code": "of A"},
        {"code": "of A"},
    ]


def test_no_version_draws_boxes_over_the_references(tmp_path: Path) -> None:
    """Rows become buttons where a sample can draw."""
    more = """
    const given = [], bytes = String;
    const answerView = (answer, sample) => given.push(sample);
    """
    script = """
    bench.sample = { json: "A", draw: () => {} };
    compared.versions = ["1", "2"];
    for (const version of compared.versions) {
      compared.results.set(version, { times: [], answer: { predictions: [] } });
      side({ versions: [] }, version);
    }
    console.log(JSON.stringify(given.map(({ json, draw }) => [json, draw === undefined])));"""
    given = run_module("parts/compare.js", script, tmp_path, more)
    assert given == [["A", True], ["A", True]]


def test_a_late_stream_is_stopped(tmp_path: Path) -> None:
    """A stream that was cancelled while starting is stopped.

    Only the newest one stays.
    """
    script = """
    const live = new Set(), given = [];
    const stream = (name) => { live.add(name); return { name, getTracks: () => [{ stop: () => live.delete(name) }] }; };
    const getUserMedia = () => new Promise((resolve, reject) => given.push({ resolve, reject }));
    Object.defineProperty(globalThis, "navigator", { value: { mediaDevices: { getUserMedia } } });
    const capture = new Capture(), said = [];
    const stopped = capture.open({}); capture.stop();
    given[0].resolve(stream("stopped")); said.push(await stopped, [...live]);
    const first = capture.open({}), second = capture.open({}), refused = capture.open({}), last = capture.open({});
    given[4].resolve(stream("last")); said.push((await last).name);
    given[3].reject(new Error("refused")); said.push(await refused);
    given[1].resolve(stream("first")); given[2].resolve(stream("second"));
    said.push(await first, await second, [...live]);
    capture.stop(); said.push([...live], capture.stream);
    console.log(JSON.stringify(said));"""
    expected = [None, [], "last", None, None, None, ["last"], [], None]
    assert run_module("inputs/capture.js", script, tmp_path) == expected


PARTS = """
const modelsView = {}, language = "en";
const document = { documentElement: {} }, addEventListener = () => {};
const takeTicket = () => null, session = { get: () => null }, isOpen = async () => false, show = () => {};
location.hash = "#%";
"""


def test_odd_addresses_open_the_page(tmp_path: Path) -> None:
    """It starts with the part named after the hash, or with the models."""
    script = """
    const read = (hash) => { location.hash = hash; return readRoute(); };
    const odd = ["", "#%", "#toString", "#__proto__/x"].map((hash) => read(hash).part);
    console.log(JSON.stringify([route.part, ...odd, read("#try/a%2Fb/%E0")]));"""
    named = {"part": "try", "rest": ["a/b", "%E0"]}
    assert run_module("main.js", script, tmp_path, PARTS) == 5 * ["models"] + [named]


def test_pairs_of_texts_are_sent_in_the_servers_form(tmp_path: Path) -> None:
    script = """
    const one = pair.create(new Bench()).make({ text: "a film", textPair: "a song" });
    const several = pairs.create(new Bench()).make({ query: "a film", texts: "good\\n\\n bad " });
    console.log(JSON.stringify([one, several].map((sample) => JSON.parse(sample.body))));
    """

    one, several = run_module("inputs/texts.js", script, tmp_path)

    assert one == {"text": "a film", "text_pair": "a song"}
    assert several == [
        {"text": "a film", "text_pair": "good"},
        {"text": "a film", "text_pair": "bad"},
    ]


def test_captions_go_on_after_a_failure(tmp_path: Path) -> None:
    """Sound without final words is sent again, in a new sequence."""
    script = """
    const words = new CaptionWords(), steps = [], seen = [];
    const take = (text, open, final, duration, predictions) => {
      const answer = { text, open, final, duration, predictions };
      words.take(answer); seen.push([words.text, words.open, answer.duration]);
    };
    steps.push(words.step(false));
    take("The cat", " sat", false, 2, [{ text: "The cat", start: 0, end: 1.5 }]);
    steps.push(words.step(false));
    seen.push(words.restart());
    steps.push(words.step(true));
    take("sat.", "", true, 2.5, [{ text: "sat.", start: 0.5, end: 1 }]);
    seen.push(words.restart(), words.entries.map((entry) => [entry.start, entry.end]));
    const names = steps.map((step) => Object.keys(step));
    console.log(JSON.stringify([seen, names, steps[0].sequence_id === steps[1].sequence_id]));"""
    seen, names, is_same = run_module("inputs/captionwords.js", script, tmp_path)
    assert seen == [
        ["The cat", " sat", 2],
        1.5,
        ["The cat sat.", "", 4],
        4,
        [[0, 1.5], [2, 2.5]],
    ]
    assert names == [
        ["sequence_id", "sequence_start"],
        ["sequence_id"],
        ["sequence_id", "sequence_start", "sequence_end"],
    ]
    assert is_same


CAPTIONS = """
const html = () => "", t = () => "", update = () => {}, RATE = 10;
const samplesOf = async (blob) => blob.samples;
class MicrophoneInput {
  constructor(bench) { this.bench = bench; bench.input = this; this.ends = 0; }
  begin(recorder) { this.recorder = recorder; }
  end() { this.ends += 1; }
}
const setTimeout = (run, pause) => { pauses.push(pause); setImmediate(run); };
const pauses = [], steps = [];
const bench = { submit: (sample) => new Promise((resolve) => {
  const size = sample.body.size, isEnd = sample.query.sequence_end === true;
  const answer = (text) => {
    sample.draw({ text, open: "", final: isEnd, duration: 1, predictions: [] });
    resolve(null);
  };
  steps.push({ size, isEnd, id: sample.query.sequence_id, answer, fail: (code) => resolve({ code }) });
}) };
const recording = (length) => ({ size: 1, samples: new Float32Array(length) });
const settle = async () => { for (let turn = 0; turn < 5; turn += 1) await new Promise((done) => setImmediate(done)); };
"""


def run_captions(script: str, folder: Path) -> Any:
    """Run a script with the input of live captions, called ``input``."""
    words = IMPORTS.sub("", (WEB / "inputs" / "captionwords.js").read_text("utf-8"))
    words = words.replace("export ", "")
    start = "const input = captions.create(bench);"
    base = CAPTIONS + words
    return run_module("inputs/captions.js", start + script, folder, base=base)


@pytest.mark.parametrize("outcome", ["answer('old')", "fail('QUEUE_FULL')"])
def test_a_recording_begun_during_the_last_step_is_its_own(
    tmp_path: Path, outcome: str
) -> None:
    """Neither the answer nor the failure of the old step touches the new recording."""
    script = f"""
    input.begin("first"); input.finish(recording(40), "first"); await settle();
    input.begin("second"); input.listen(recording(10)); await settle();
    steps[0].{outcome}; await settle();
    steps[1].answer("new"); await settle();
    input.listen(recording(30)); await settle();
    const sizes = steps.map(({{ size }}) => size / 4);
    console.log(JSON.stringify([input.run.words.text, sizes, steps[1].id === steps[2].id]));"""
    expected = ["new", [40, 10, 20], True]
    assert run_captions(script, tmp_path) == expected


def test_the_late_end_of_an_old_recording_is_not_sent(tmp_path: Path) -> None:
    script = """
    input.begin("first"); input.begin("second");
    input.finish(recording(40), "first"); await settle();
    console.log(JSON.stringify(steps.length));"""
    assert run_captions(script, tmp_path) == 0


def test_the_last_step_of_captions_is_repeated(tmp_path: Path) -> None:
    script = """
    input.begin("first"); input.listen(recording(10)); await settle();
    steps[0].answer("The"); await settle();
    input.finish(recording(30), "first"); await settle();
    steps[1].fail("QUEUE_FULL"); await settle();
    steps[2].answer("The end."); await settle();
    const asked = steps.map(({ size, isEnd }) => [size / 4, isEnd]);
    console.log(JSON.stringify([asked, input.run.words.text, input.ends]));"""
    asked, text, ends = run_captions(script, tmp_path)
    assert asked == [
        [10, False],
        [20, True],
        [30, True],
    ]
    assert text.endswith("The end.")
    assert ends == 0


@pytest.mark.parametrize(
    ("code", "steps"),
    [
        ("QUEUE_FULL", 5),
        ("MODEL_BROKEN", 1),
    ],
)
def test_the_last_step_is_repeated_a_few_times_at_most(
    tmp_path: Path, code: str, steps: int
) -> None:
    script = f"""
    input.begin("first"); input.finish(recording(30), "first"); await settle();
    for (let turn = 0; turn < 9; turn += 1) {{ steps.at(-1).fail("{code}"); await settle(); }}
    console.log(JSON.stringify([steps.length, pauses.length, input.run.isSending]));"""
    assert run_captions(script, tmp_path) == [steps, steps - 1, False]


ELEMENTS = """
const element = (tag) => ({
  tag, append() {}, createTHead: () => section, createTBody: () => section,
});
const row = { append() {} }, section = { insertRow: () => row };
const document = { createTextNode: (text) => text };
"""


def test_only_a_rule_with_marks_makes_a_table(tmp_path: Path) -> None:
    """As in GitHub's Markdown. A table is in a scrolling ``div``."""
    texts = [
        "| a | b |\n|---|:-:|\n| 1 | 2 |",
        "a | b\n- | -",
        "| a |\n| - |",
        "x \\| y | b\n--- | ---",
        "a | b\n---",
        "a | b\n- one",
        "a | b\n| - |",
        "a | b\n: | :",
    ]
    script = f"""
    const tags = {json.dumps(texts)}.map((text) => blockAt(text.split("\\n"), 0, 0).make().tag);
    console.log(JSON.stringify(tags));"""
    tags = run_module("chat/markdown.js", script, tmp_path, ELEMENTS)
    assert tags == [*4 * ["div"], *4 * ["p"]]


@pytest.mark.parametrize("kind", ["srt", "vtt"])
def test_the_page_writes_subtitles_as_the_server_does(
    tmp_path: Path, kind: str
) -> None:
    texts = ["a & b <i>c</i>", "x --> y ---> z", " one\n\ntwo\r\nthree "]
    parts = [
        {
            "start": 0,
            "end": 3723.0454,
            "text": text,
        }
        for text in texts
    ]
    script = f"console.log(JSON.stringify(subtitles('{kind}', {json.dumps(parts)})));"
    cues = [Cue(0, 3723.0454, text) for text in texts]
    expected = subtitles(cues, kind).strip().split("\n")
    written = run_module("answers/transcript.js", script, tmp_path)
    assert written.strip().split("\n") == expected


ANSWERS = """
const t = () => "";
const measure = String, number = String, percent = (share) => `${100 * share} %`;
const isBackground = () => false;
"""


@pytest.mark.parametrize(
    ("entry", "name", "value"),
    [
        ({"label": "cat", "index": 0, "score": 0.5}, "cat", "50 %"),
        (
            {"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]},
            "y",
            "FP32 [1, 2]",
        ),
        ({"start": 0, "end": 0.5, "score": 0.5}, "0 – 0.5 s", "50 %"),
        ({"index": 3, "embedding": [1, 2]}, "3", ""),
        ({"value": "much"}, "much", ""),
        ({"value": 2, "unit": "kg"}, "2", "kg"),
        ({"word": "own"}, '{"word":"own"}', ""),
    ],
)
def test_the_history_names_every_kind_of_entry(
    tmp_path: Path, entry: dict[str, Any], name: str, value: str
) -> None:
    script = f"""
    console.log(JSON.stringify(headline({{ predictions: [{json.dumps(entry)}] }}, {{}})));"""
    expected = {"name": name, "value": value}
    headline = run_module("answers/answer.js", script, tmp_path, base=ANSWERS)
    assert headline == expected
