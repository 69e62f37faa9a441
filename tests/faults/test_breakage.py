"""The checks can fail: each safeguard is broken on purpose, and a named check must go red.

A suite that has never failed proves nothing. The broken part is put into the product for the time
of one check, in this process; the same check is green before and after.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import faults.test_embedded_store as embedded_checks
import faults.test_safeguards as safeguards
import pytest
import unit.consumer.test_partition_trouble as trouble_checks
import unit.consumer.test_partition_worker as worker_checks
import unit.ledger.test_counterexamples as counterexamples
import unit.ledger.test_debts as debt_checks
import unit.ledger.test_rebuild as rebuild_checks
from projector_fakes import Stand
from unit.ledger.kit import MemoryPartition

from fencepost.consumer import partition_worker
from fencepost.consumer.debts import DebtPayer
from fencepost.consumer.folding import Folding
from fencepost.ledger import Ledger, Limits, attempts
from fencepost.ledger.embedded_apply import Transaction
from fencepost.ledger.engine import Engine
from fencepost.ledger.history import LogEntry
from fencepost.ledger.ports import Header
from fencepost.ledger.projection import PartitionFold

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SETTLE = PartitionFold._settle_debt
Check = Callable[..., None]
Red = (AssertionError, pytest.fail.Exception)


class Broken(NamedTuple):
    """A safeguard, how it is broken, and the checks that must notice."""

    place: Any
    name: str
    substitute: Any
    checks: tuple[Check, ...]


def nothing(*_: Any, **__: Any) -> None:
    return None


async def nothing_async(*_: Any, **__: Any) -> None:
    return None


def settles_with_debts(fold: PartitionFold, applied: int) -> None:
    fold.header = replace(fold.header, applied_offset=applied, settled_offset=applied, settled_time_ms=0)


def strikes_always(fold: PartitionFold, entry: LogEntry, *, covered: bool) -> None:
    del covered
    SETTLE(fold, entry, covered=True)


def begins_open(**values: Any) -> Header:
    return Header(**{**values, "horizon": 0})


def crosses_any_gap(folding: Folding, _: int, found: int) -> None:
    folding.fold.skip_to(found)


BROKEN = {
    # (a) what a record leaves out is written again
    "the fold notes no debt": Broken(
        PartitionFold, "_owe", nothing,
        (
            counterexamples.test_a_later_intent_alone_in_the_log_does_not_become_the_owner,
            debt_checks.test_a_record_that_leaves_a_fact_out_is_owed_from_its_offset,
        ),
    ),
    "any record strikes a debt": Broken(
        PartitionFold, "_settle_debt",
        strikes_always,
        (debt_checks.test_a_late_incomplete_reassertion_strikes_nothing,),
    ),
    "the embedded store pays no debt": Broken(
        Transaction, "_pay", lambda *_: [], (embedded_checks.test_debts_are_paid_in_the_same_transaction,)
    ),
    "the projector pays no debt": Broken(
        DebtPayer, "pay", nothing, (worker_checks.test_debts_are_paid_and_struck_by_reading_back,)
    ),
    # (b) nobody is answered or judged below the horizon
    "the fold opens below its horizon": Broken(
        PartitionFold, "horizon_reached", lambda fold: not fold.header.opened,
        (
            counterexamples.test_during_a_rebuild_a_later_record_does_not_win_before_the_earlier_facts_are_read,
            rebuild_checks.test_below_the_horizon_intents_are_noted_and_not_judged,
        ),
    ),
    "the projector begins without a horizon": Broken(
        partition_worker, "Header", begins_open, (worker_checks.test_no_belief_below_the_horizon,)
    ),
    # (c) intents behind a fence are rejected
    "the fold takes fenced intents": Broken(
        PartitionFold, "_fenced", lambda *_: False,
        (
            debt_checks.test_a_fenced_intent_gets_its_verdict_and_owes_it,
            counterexamples.test_a_fence_that_cleaning_moved_behind_an_intent_judges_the_same,
            safeguards.test_a_session_that_was_rolled_back_claims_nothing,
        ),
    ),
    "nobody writes fences": Broken(
        Engine, "fence", nothing_async,
        (
            safeguards.test_a_session_that_was_superseded_claims_nothing,
            safeguards.test_a_session_that_was_rolled_back_claims_nothing,
        ),
    ),
    # (d) below the settled offset nothing is owed, and only there may records be missing
    "the settled offset passes what is owed": Broken(
        PartitionFold, "_advance", settles_with_debts,
        (
            counterexamples.test_the_cleaner_may_not_pass_what_is_not_paid,
            debt_checks.test_the_settled_offset_stands_at_the_oldest_of_all_debts,
        ),
    ),
    "the projector passes over gaps above the settled offset": Broken(
        Folding, "_cross", crosses_any_gap,
        (
            trouble_checks.test_a_gap_is_read_twice_before_it_stops_anything,
            trouble_checks.test_a_gap_that_reaches_over_the_settled_offset,
        ),
    ),
    "claims go on while the settled offset is old": Broken(
        attempts, "_require_settled_log", nothing_async, (safeguards.test_claims_stop_while_old_debts_are_not_paid,)
    ),
}  # fmt: skip


@pytest.fixture
def ledgers(tmp_path: Path) -> Iterator[tuple[Ledger, Ledger]]:
    """A pair of handles of which one may be broken while it is used."""
    url = f"sqlite://{tmp_path}/pair.db"
    with Ledger.open(url, limits=Limits(apply_s=2)) as here, Ledger.open(url, limits=Limits(apply_s=2)) as there:
        yield here, there


def run(check: Check, tmp_path: Path, ledgers: tuple[Ledger, Ledger], monkeypatch: pytest.MonkeyPatch) -> None:
    """The check, with what it asks for by name."""
    with monkeypatch.context() as inner:
        given: dict[str, Callable[[], Any]] = {
            "log": MemoryPartition, "stand": Stand, "tmp_path": lambda: tmp_path, "ledgers": lambda: ledgers,
            "monkeypatch": lambda: inner, "debt_s": lambda: 600, "granted": lambda: False,
        }  # fmt: skip
        check(**{name: given[name]() for name in inspect.signature(check).parameters})


CASES = [(name, check) for name, broken in BROKEN.items() for check in broken.checks]
IDS = [f"{name}: {check.__name__}" for name, check in CASES]


@pytest.mark.parametrize(("name", "check"), CASES, ids=IDS)
def test_a_broken_safeguard_is_noticed(
    tmp_path: Path, ledgers: tuple[Ledger, Ledger], monkeypatch: pytest.MonkeyPatch, name: str, check: Check
) -> None:
    """Red with the safeguard broken; for a wrong answer, not for a check that cannot run."""
    broken = BROKEN[name]
    with monkeypatch.context() as patch:
        patch.setattr(broken.place, broken.name, broken.substitute)
        with pytest.raises(Red):
            run(check, tmp_path, ledgers, monkeypatch)


@pytest.mark.parametrize("check", sorted({check for _, check in CASES}, key=str))
def test_the_same_check_is_green(
    tmp_path: Path, ledgers: tuple[Ledger, Ledger], monkeypatch: pytest.MonkeyPatch, check: Check
) -> None:
    """Else its red would mean nothing."""
    run(check, tmp_path, ledgers, monkeypatch)


def test_every_part_is_broken() -> None:
    """Re-assertion, horizon, fence, and settled offset: each on the fold, and each in a shell around it."""
    places = {broken.place for broken in BROKEN.values()}
    assert places >= {PartitionFold, Transaction, DebtPayer, partition_worker, Engine, Folding, attempts}
