"""Drive a real Firefox by WebDriver BiDi, with part of Playwright's interface.

Playwright only drives its own patched Firefox. Each visitor has a process and profile
of its own, because language and colours are preferences of a profile. Only loopback can
be reached: all other requests go to a proxy that doesn't exist.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from bidi import BidiError, Session, value_of
from browser_tool import tool
from places import ROOT

START_S: Final = 120.0
FIND: Final = (ROOT / "tests" / "selectors.js").read_text("utf-8")
FUNCTION: Final = re.compile(r"\s*(async\s+)?(\([^()]*\)|\w+)\s*=>")
KEYS: Final = {
    "Tab": "\ue004",
    "Enter": "\ue007",
    "\n": "\ue007",
}
REPORTS: Final = """() => addEventListener('securitypolicyviolation',
    event => console.error(`Content Security Policy: ${event.violatedDirective} ${event.blockedURI}`))"""
PREFERENCES: Final[dict[str, Any]] = {
    # A camera with a test picture, a microphone with a tone, and no permission dialogs.
    "media.navigator.streams.fake": True,
    "media.navigator.permission.disabled": True,
    # Nothing but loopback.
    "network.proxy.type": 1,
    "network.proxy.socks": "127.0.0.1",
    "network.proxy.socks_port": 9,
    "network.proxy.socks_remote_dns": True,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "services.settings.server": "data:,",
    "app.update.disabledForTesting": True,
    "app.normandy.enabled": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "toolkit.telemetry.server": "data:,",
    "dom.push.connection.enabled": False,
    # Start fast, and with an empty page.
    "browser.startup.page": 0,
    "browser.newtabpage.enabled": False,
    "browser.aboutwelcome.enabled": False,
    "toolkit.cosmeticAnimations.enabled": False,
    "remote.active-protocols": 1,
}
# the fonts that were fetched with it
READABLE: Final = "security.sandbox.content.read_path_whitelist"
DARK: Final = "layout.css.prefers-color-scheme.content-override"  # 0 is dark, 1 light


class Firefox:
    """Makes visitors, like Playwright's browser.

    Args:
        preferences: added to ``PREFERENCES``, or replacing them.
    """

    def __init__(self, preferences: dict[str, Any] | None = None) -> None:
        self._preferences = {**PREFERENCES, **(preferences or {})}

    def new_context(
        self,
        *,
        locale: str = "en-US",
        color_scheme: str = "light",
        viewport: dict[str, int] | None = None,
    ) -> Context:
        """Start a Firefox with an empty profile."""
        look = {"intl.accept_languages": locale, DARK: int(color_scheme != "dark")}
        return Context(
            {**self._preferences, **look}, viewport or {"width": 1280, "height": 720}
        )


class Context:
    """One visitor: a process, its profile, and a session."""

    def __init__(self, preferences: dict[str, Any], viewport: dict[str, int]) -> None:
        self._viewport = viewport
        self._profile = Path(tempfile.mkdtemp(prefix="firefox-"))
        program: Path = tool().provide("firefox")
        preferences[READABLE] = f"{program.parent}/"
        lines = (
            f"user_pref({json.dumps(n)}, {json.dumps(v)});\n"
            for n, v in preferences.items()
        )
        (self._profile / "user.js").write_text("".join(lines))
        command = [
            str(program),
            "--headless",
            "--no-remote",
            "--profile",
            str(self._profile),
        ]
        self._process = subprocess.Popen(
            [*command, "--remote-debugging-port", "0"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._open = ExitStack()
        self._open.callback(self._end)
        with self._open:
            self.session = Session(self._address())
            self._open.callback(self.session.close)
            self.session.command("script.addPreloadScript", functionDeclaration=REPORTS)
            self._open = self._open.pop_all()

    def _address(self) -> str:
        file = self._profile / "WebDriverBiDiServer.json"
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                place = json.loads(file.read_text())
                return f"ws://{place['ws_host']}:{place['ws_port']}"
            except (OSError, ValueError):  # missing or incomplete
                _pause(self._process, 0.05)
        raise RuntimeError("Firefox did not start")

    def set_default_timeout(self, _milliseconds: float) -> None:
        """Ignore the timeout: every wait has the session's limit."""

    def new_page(self) -> Page:
        """Open a tab."""
        context = self.session.command("browsingContext.create", type="tab")["context"]
        self.session.command(
            "browsingContext.setViewport", context=context, viewport=self._viewport
        )
        return Page(self, context)

    def cookies(self) -> list[Any]:
        """Return all cookies of the profile."""
        cookies: list[Any] = self.session.command("storage.getCookies")["cookies"]
        return cookies

    def close(self) -> None:
        """End the session and the process, and delete the profile."""
        self._open.close()

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(START_S)
        finally:
            self._process.kill()
            shutil.rmtree(self._profile, ignore_errors=True)


def _pause(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Let a process continue for a moment, unless it ends."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return


class Page:
    """A tab, with the calls of Playwright's page that the tests use."""

    def __init__(self, visitor: Context, context: str) -> None:
        self.context = visitor
        self._session = visitor.session
        self._context = context
        self.keyboard = Keyboard(self._act)
        self.mouse = Mouse(self._act)

    def on(self, event: str, handler: Callable[[Any], None]) -> None:
        """Listen to requests, errors of the page and lines of its console."""
        if event == "request":
            self._session.listen(
                "network.beforeRequestSent",
                lambda told: handler(SimpleNamespace(url=told["request"]["url"])),
            )
        elif event == "pageerror":
            self._read_log("javascript", handler)
        else:
            self._read_log("console", lambda text: handler(SimpleNamespace(text=text)))

    def _read_log(self, kind: str, handler: Callable[[str], None]) -> None:
        def take(entry: dict[str, Any]) -> None:
            if (
                entry["type"] == kind
                and entry["source"].get("context") == self._context
            ):
                handler(entry["text"])

        self._session.listen("log.entryAdded", take)

    @property
    def url(self) -> str:
        """Return the address."""
        address: str = self.evaluate("location.href")
        return address

    def close(self) -> None:
        """Close the tab."""
        self._session.command("browsingContext.close", context=self._context)

    def goto(self, url: str) -> None:
        """Open an address, and wait until it is loaded."""
        self._session.command(
            "browsingContext.navigate", context=self._context, url=url, wait="complete"
        )

    def evaluate(self, script: str, argument: Any = None) -> Any:
        """Return the value of an expression, or of a function's call with the argument."""
        target = {"context": self._context}
        if not FUNCTION.match(script):
            return self._value("script.evaluate", expression=script, target=target)
        function = f"argument => ({script})(JSON.parse(argument))"
        given = [{"type": "string", "value": json.dumps(argument)}]
        return self._value(
            "script.callFunction",
            functionDeclaration=function,
            arguments=given,
            target=target,
        )

    def _value(self, method: str, **parameters: Any) -> Any:
        return value_of(self._result(method, **parameters))

    def _result(self, method: str, **parameters: Any) -> dict[str, Any]:
        answer = self._session.command(method, awaitPromise=True, **parameters)
        if answer["type"] == "exception":
            raise BidiError(answer["exceptionDetails"]["text"])
        result: dict[str, Any] = answer["result"]
        return result

    def wait_for_function(self, script: str, arg: Any = None) -> None:
        """Wait until a function or an expression is true."""
        condition = script if FUNCTION.match(script) else f"() => ({script})"
        self.evaluate(
            f"""argument => new Promise((done, fail) => {{
            const end = performance.now() + {(START_S - 5) * 1000};
            const look = () => {{
                if (({condition})(argument)) done(true);
                else if (performance.now() > end) fail(new Error('it did not happen: ' + document.body.innerText));
                else setTimeout(look, 30);
            }};
            look(); }})""",
            arg,
        )

    def wait_for_selector(self, selector: str, state: str = "visible") -> Locator:
        """Wait until an element is visible, attached or gone."""
        count = f"({FIND})({json.dumps(selector)}, {json.dumps(state != 'attached')}).length"
        self.wait_for_function(
            f"() => {count} {'=== 0' if state == 'detached' else '> 0'}"
        )
        return Locator(self, selector)

    def locator(self, selector: str) -> Locator:
        """Return a locator of elements that may not exist."""
        return Locator(self, selector)

    def element(self, selector: str) -> dict[str, Any]:
        """Wait for a usable element, scroll to it, and return the reference to it."""
        first = f"({FIND})({json.dumps(selector)}, false)[0]"
        self.wait_for_function(
            f"() => {{ const first = {first}; return first && !first.matches(':disabled') }}"
        )
        function = f"() => {{ const first = {first}; first.scrollIntoView({{block: 'center'}}); return first }}"
        found = self._result(
            "script.callFunction",
            functionDeclaration=function,
            target={"context": self._context},
            resultOwnership="root",
        )
        return {"sharedId": found["sharedId"]}

    def click(self, selector: str) -> None:
        """Wait until an element is visible, and click its middle."""
        self.wait_for_selector(selector)
        origin = {"type": "element", "element": self.element(selector)}
        self._act(
            "pointer",
            [{"type": "pointerMove", "x": 0, "y": 0, "origin": origin}, *PRESS],
        )

    def focus(self, selector: str) -> None:
        """Focus an element."""
        self.element(selector)
        self.evaluate(f"() => ({FIND})({json.dumps(selector)}, false)[0].focus()")

    def fill(self, selector: str, text: str) -> None:
        """Replace a field's text."""
        self.focus(selector)
        self.evaluate("document.activeElement.select()")
        self.keyboard.type(text)

    def set_input_files(self, selector: str, file: str) -> None:
        """Choose a file."""
        self._session.command(
            "input.setFiles",
            context=self._context,
            element=self.element(selector),
            files=[str(file)],
        )

    def inner_text(self, selector: str) -> str:
        """Return the text of the first such element, once it exists."""
        self.wait_for_selector(selector, "attached")
        return self.locator(selector).all_inner_texts()[0]

    def get_attribute(self, selector: str, name: str) -> str | None:
        """Return an attribute of the first such element."""
        value: str | None = self.evaluate(
            f"() => ({FIND})({json.dumps(selector)}, false)[0].getAttribute({json.dumps(name)})"
        )
        return value

    def screenshot(self, path: Path, full_page: bool = False) -> None:
        """Save a picture of the page."""
        origin = "viewport"
        if full_page:
            origin = "document"
        shot = self._session.command(
            "browsingContext.captureScreenshot", context=self._context, origin=origin
        )
        path.write_bytes(base64.b64decode(shot["data"]))

    def _act(self, kind: str, actions: Sequence[dict[str, Any]]) -> None:
        source = {
            "type": kind,
            "id": kind,
            "actions": list(actions),
        }
        self._session.command(
            "input.performActions", context=self._context, actions=[source]
        )


DOWN: Final[dict[str, Any]] = {"type": "pointerDown", "button": 0}
UP: Final[dict[str, Any]] = {"type": "pointerUp", "button": 0}
PRESS: Final = (DOWN, UP)
Act = Callable[[str, Sequence[dict[str, Any]]], None]


class Mouse:
    """The mouse of a tab."""

    def __init__(self, act: Act) -> None:
        self._act = act

    def move(self, x: float, y: float) -> None:
        """Go to a point of the viewport."""
        self._act("pointer", [{"type": "pointerMove", "x": round(x), "y": round(y)}])

    def down(self) -> None:
        """Press the button."""
        self._act("pointer", [DOWN])

    def up(self) -> None:
        """Release the button."""
        self._act("pointer", [UP])


class Keyboard:
    """The keyboard of a tab."""

    def __init__(self, act: Act) -> None:
        self._act = act

    def press(self, key: str) -> None:
        """Press a key, by its name."""
        self.type(KEYS[key])

    def type(self, text: str) -> None:
        """Type a text; newlines are the Enter key."""
        signs = (KEYS.get(sign, sign) for sign in text)
        self._act(
            "key",
            [
                {"type": kind, "value": sign}
                for sign in signs
                for kind in ("keyDown", "keyUp")
            ],
        )


class Locator:
    """Elements of a selector, which are looked up at each use."""

    def __init__(self, page: Page, selector: str) -> None:
        self._page = page
        self._selector = selector

    def _each(self, function: str) -> Any:
        return self._page.evaluate(
            f"() => ({FIND})({json.dumps(self._selector)}, false).map({function})"
        )

    def count(self) -> int:
        """Return the number of elements."""
        return len(self._each("element => 1"))

    def all(self) -> list[Locator]:
        """Return each of them."""
        return [
            Locator(self._page, f"{self._selector} >> nth={number}")
            for number in range(self.count())
        ]

    def all_inner_texts(self) -> list[str]:
        """Return their texts."""
        texts: list[str] = self._each("element => element.innerText")
        return texts

    def inner_text(self) -> str:
        """Return the text of the first one."""
        return self._page.inner_text(self._selector)

    def fill(self, text: str) -> None:
        """Type a text into the first one."""
        self._page.fill(self._selector, text)

    def click(self) -> None:
        """Click the first one."""
        self._page.click(self._selector)

    def bounding_box(self) -> dict[str, float]:
        """Scroll to the first one and return its box in the viewport."""
        self._page.element(self._selector)
        first = self._each(
            "element => { const { x, y, width, height } = element.getBoundingClientRect(); "
            "return { x, y, width, height } }"
        )[0]
        box: dict[str, float] = first
        return box
