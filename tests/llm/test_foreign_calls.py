"""Use other people's clients, with the token as API key."""

from __future__ import annotations

import pytest

from conftest import Server
from foreign_calls import CALLS, PAGE, ForeignCall, page

pytestmark = [
    pytest.mark.llm,
    # Libraries warn of their own deprecations.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.client}: {call.call}")
def test_a_foreign_call_gets_its_answer(llm_server: Server, call: ForeignCall) -> None:
    call.run(llm_server)


def test_the_table_has_these_calls() -> None:
    assert len(CALLS) >= 40
    assert PAGE.read_text(encoding="utf-8") == page()
