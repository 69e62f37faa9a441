"""How often the ledger on Kafka and Redis waits for a server. Nothing is timed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

import pytest
from exchanges import produces, reads

from fencepost.ledger.bench_kafka import home
from fencepost.ledger.bench_rows import Settings
from fencepost.ledger.facade import Ledger
from fencepost.ledger.facts import EffectClass
from fencepost.ledger.session_faces import AgentSession
from fencepost.ledger.verdicts import VerdictKind

PARTITIONS = 64
SOON_S = 60.0


@pytest.fixture(scope="module")
def ledger(kafka_bootstrap: str, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    """A ledger with many partitions."""
    url = f"kafka://{kafka_bootstrap}/exchanges?projection={redis_url}&development=1"
    settings = Settings(directory=tmp_path_factory.mktemp("home"), kafka_url=url)
    with home(settings, partitions=PARTITIONS) as at, Ledger.open(at.url) as opened:
        yield opened


def decorated(session: AgentSession, tool: str, *, order_safe: bool = False) -> Callable[[str, int], dict[str, int]]:
    kind = EffectClass.IDEMPOTENT if order_safe else EffectClass.IRREVERSIBLE

    @session.effect(tool, kind=kind, order_safe=order_safe)
    def act(name: str, number: int) -> dict[str, int]:
        return {name: number}

    return act


def test_an_effect(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guarded effect reads its operation once; that it owns it is announced. Its intent and its outcome are produced."""
    with ledger.session("one") as session:
        pay, numbers = decorated(session, "pay"), itertools.count()
        pay("one", next(numbers))
        waits, written = reads(monkeypatch), produces(monkeypatch)
        # The first wait for a partition also reads its header.
        deadline = time.monotonic() + SOON_S
        while waits.least(lambda: pay("one", next(numbers))) > 1:
            assert time.monotonic() < deadline
        written.spans.clear()
        pay("one", next(numbers))
        assert (len(written.spans), written.chain()) == (2, 2)


def test_a_duplicate(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorded result of an effect comes back after two reads at most, and nothing is waited for in Kafka."""
    with ledger.session("two") as session:
        decorated(session, "pay")("two", 1)
    with ledger.session("two") as session:
        pay, waits, written = decorated(session, "pay"), reads(monkeypatch), produces(monkeypatch)
        assert waits.least(lambda: pay("two", 1)) <= 2
        assert len(written.spans) <= 1


def test_a_dry_run(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dry run of the guard over all partitions reads three times at most, with an effect that is open; the next one once."""
    with ledger.session("three") as session:
        pay, put = decorated(session, "pay"), decorated(session, "put", order_safe=True)
        for number in range(5):
            pay("three", number)
        session.checkpoint("mark")
        for number in range(5):
            put("three", number)
        session.checkpoint("end")
        opened = session.attempt("pay", key="open", kind=EffectClass.IRREVERSIBLE).begin()
        waits = reads(monkeypatch)
        numbers = itertools.count()

        def another() -> None:
            ledger.preview_rollback("three", checkpoint="mark", restored=f"another question {next(numbers)}")

        assert waits.least(another) <= 3
        assert len(waits.spans) > PARTITIONS
        until_remembered = time.monotonic() + SOON_S
        while waits.least(lambda: ledger.preview_rollback("three", checkpoint="mark")) > 1:
            assert time.monotonic() < until_remembered
        assert ledger.preview_rollback("three", checkpoint="mark").kind is VerdictKind.REFUSE
        opened.commit(None)


def test_a_decision(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision waits for three records one after the other: the request, all fences at once, and the decision."""
    session = ledger.session("four").open()
    pay, put = decorated(session, "pay"), decorated(session, "put", order_safe=True)
    for number in range(5):
        pay("four", number)
    session.checkpoint("mark")
    for number in range(5):
        put("four", number)
    session.checkpoint("end")
    written = produces(monkeypatch)
    verdict = ledger.authorize_rollback("four", checkpoint="mark")
    assert verdict.kind is VerdictKind.PROCEED
    assert len(written.spans) == 1 + PARTITIONS + 1
    assert written.chain() == 3
