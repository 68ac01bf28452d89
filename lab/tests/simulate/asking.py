"""Send requests continuously, as an app would, and record the outcomes."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from conftest import MODELS
from pocketserve_client import Client, ServerError, ServerUnreachableError

DIGITS = {
    path.stem: path.read_bytes()
    for path in sorted((MODELS / "digits" / "samples").glob("*.png"))
}


@dataclass
class Record:
    """Outcomes in order: the digit sent, and the answer or error."""

    entries: list[tuple[str, Any]] = field(default_factory=list)

    @property
    def errors(self) -> list[Exception]:
        return [got for _, got in self.entries if isinstance(got, Exception)]

    def right(self) -> int:
        """Return the number of answers.

        Check that each belongs to its request.
        """
        answers = []
        for asked, got in self.entries:
            if not isinstance(got, Exception):
                answers.append((asked, got))
        assert all(asked == got for asked, got in answers)
        return len(answers)


class Asker:
    """Sends one digit after the other until it is closed."""

    def __init__(self, client: Client) -> None:
        self.record = Record()
        self._client = client
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Record:
        self._thread.start()
        return self.record

    def __exit__(self, *error: object) -> None:
        self._ends.set()
        self._thread.join(90)
        assert not self._thread.is_alive(), "a request was neither answered nor refused"
        self._client.close()

    def _run(self) -> None:
        while not self._ends.is_set():
            for digit, picture in DIGITS.items():
                if not self._ends.is_set():
                    self.record.entries.append((digit, self._ask(picture)))

    def _ask(self, picture: bytes) -> Any:
        try:
            return self._client.predict("digits", picture, top_k=1)["predictions"][0][
                "label"
            ]
        except (ServerError, ServerUnreachableError) as error:
            self._ends.wait(0.02)  # an app would not retry at once either
            return error
