"""Fast checks of safeguards through the whole of a ledger: what an agent may not do once it has been overtaken."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.ledger import AgentSession, EffectClass, FencedError, Ledger, Limits, StaleProjectionError
from fencepost.ledger.ports import Terms

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fencepost.ledger.ports import Snapshot


@pytest.fixture
def ledgers(tmp_path: Path) -> Iterator[tuple[Ledger, Ledger]]:
    """Two handles on one ledger, as two processes have them."""
    url = f"sqlite://{tmp_path}/ledger.db"
    with Ledger.open(url, limits=Limits(apply_s=2)) as here, Ledger.open(url, limits=Limits(apply_s=2)) as there:
        yield here, there


def claims(session: AgentSession, key: str) -> bool:
    with session.attempt("mail.send", key=key, kind=EffectClass.IRREVERSIBLE) as attempt:
        owned = attempt.owned
        if owned:
            attempt.commit(None)
    return owned


def test_a_session_that_was_superseded_claims_nothing(ledgers: tuple[Ledger, Ledger]) -> None:
    """It does not know of its successor; the fence that the successor wrote rejects its intent."""
    here, there = ledgers
    old = here.session("agent").open()
    assert claims(old, "before")
    with there.session("agent") as new:
        with pytest.raises(FencedError):
            claims(old, "after")
        assert claims(new, "after")


def test_a_session_that_was_rolled_back_claims_nothing(ledgers: tuple[Ledger, Ledger]) -> None:
    """The guard authorised on what it had seen; what its session would still do is rejected."""
    here, there = ledgers
    old = here.session("agent").open()
    old.checkpoint("c")
    assert there.authorize_rollback("agent", checkpoint="c").authorised
    with pytest.raises(FencedError):
        claims(old, "after")


@pytest.mark.parametrize(("debt_s", "granted"), [(400, True), (600, False)])
def test_claims_stop_while_old_debts_are_not_paid(
    ledgers: tuple[Ledger, Ledger], monkeypatch: pytest.MonkeyPatch, debt_s: int, granted: bool
) -> None:
    """A settled offset that is older than half the compaction lag: the log cleaner could overtake it."""
    here, _ = ledgers
    engine = here._engine
    engine.terms = Terms(min_compaction_lag_s=1000)
    read = engine.store.projection.read

    async def owing(*args: Any) -> Snapshot:
        snapshot = await read(*args)
        return replace(
            snapshot, header=replace(snapshot.header, settled_time_ms=snapshot.header.now_ms - debt_s * 1000)
        )

    with here.session("agent") as session:
        monkeypatch.setattr(engine.store.projection, "read", owing)
        if granted:
            assert claims(session, "op")
        else:
            with pytest.raises(StaleProjectionError, match="owes re-assertions"):
                claims(session, "op")
        monkeypatch.undo()
