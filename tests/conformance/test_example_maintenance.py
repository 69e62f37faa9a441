"""A nightly maintenance whose memory is compacted away: what a rollback does without the guard, and what it does with it."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from conformance.worlds import World

from fencepost.ledger import DivergenceHeldError, EffectClass, Ledger, UnsafeRollbackError, Watermark, WayOn

if TYPE_CHECKING:
    from collections.abc import Callable

    from fencepost.ledger import AgentSession

TOOLS = ("credentials.rotate", "scratch.truncate", "cursor.advance")
BATCH = 5


@dataclass
class Systems:
    """The outside world: no restore of the agent's state changes it."""

    credentials: int = 1
    scratch: list[str] = field(default_factory=lambda: ["row"] * 7)
    records: list[str] = field(default_factory=lambda: [f"record {n}" for n in range(3 * BATCH)])
    cursor: int = 0
    processed: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)

    def rotate(self) -> int:
        self.calls.append("rotate")
        self.credentials += 1
        return self.credentials

    def truncate(self) -> int:
        self.calls.append("truncate")
        gone = len(self.scratch)
        self.scratch.clear()
        return gone

    def advance(self, by: int) -> int:
        self.calls.append("advance")
        self.cursor += by
        return self.cursor

    def process(self) -> None:
        """What every cycle begins with: the records from the cursor on, one batch."""
        self.processed += self.records[self.cursor : self.cursor + BATCH]

    @property
    def skipped(self) -> list[str]:
        """Records that the cursor has passed and nobody has processed."""
        return [record for record in self.records[: self.cursor] if record not in self.processed]


@dataclass
class Memory:
    """The agent's context: a tree of summaries. It is what a checkpoint keeps, and what a rollback restores."""

    leaves: list[str] = field(default_factory=list)
    root: str = ""
    token: str = ""

    def note(self, text: str) -> None:
        self.leaves.append(text)

    def compact_twice(self) -> None:
        """Leaves into a parent, the parent into the root: what was done becomes prose."""
        parent = f"{len(self.leaves)} tasks of the maintenance phase: credentials, scratch, cursor"
        self.leaves.clear()
        self.root = "Some maintenance tasks were performed." if parent else ""

    @property
    def knows_of_maintenance(self) -> bool:
        return any("maintenance" in text for text in (*self.leaves, self.root))


def maintain(memory: Memory, tools: dict[str, Callable[..., Any]]) -> dict[str, Any]:
    """One maintenance: three destructive operations, noted in the agent's memory."""
    results = {
        "credentials.rotate": tools["credentials.rotate"](),
        "scratch.truncate": tools["scratch.truncate"](),
        "cursor.advance": tools["cursor.advance"](BATCH),
    }
    for tool, result in results.items():
        memory.note(f"maintenance: {tool} gave {result}")
    return results


def plain_tools(systems: Systems) -> dict[str, Callable[..., Any]]:
    return dict(zip(TOOLS, (systems.rotate, systems.truncate, systems.advance), strict=True))


def ledger_tools(session: AgentSession, systems: Systems, wording: str = "") -> dict[str, Callable[..., Any]]:
    """The same tools as effects of the night's maintenance; another wording of the night gives other names."""
    tools: dict[str, Callable[..., Any]] = {}
    for tool, run in plain_tools(systems).items():
        scope = f"{wording or 'night'} of {session.agent_id}"
        tools[tool] = session.effect(tool, kind=EffectClass.IRREVERSIBLE, scope=scope)(run)
    return tools


def after_the_burst(memory: Memory) -> None:
    """A burst of ingestion pushes the tree over its ceiling: two levels of compaction."""
    for number in range(100):
        memory.note(f"observation {number}")
    memory.compact_twice()


def test_without_the_guard_effects_happen_twice_and_records_are_lost() -> None:
    """The restored tree is valid and has forgotten: credentials are rotated twice, and the cursor passes a batch for good."""
    systems, memory = Systems(), Memory()
    systems.process()
    checkpoint = copy.deepcopy(memory)
    maintain(memory, plain_tools(systems))
    after_the_burst(memory)
    assert "credentials" not in memory.root

    memory = copy.deepcopy(checkpoint)  # the consistency check failed; the policy rolls back
    assert not memory.knows_of_maintenance
    maintain(memory, plain_tools(systems))  # so it is done

    assert systems.calls == ["rotate", "truncate", "advance"] * 2
    assert systems.credentials == 3
    systems.process()
    assert systems.skipped == systems.records[BATCH : 2 * BATCH]


@dataclass
class Night:
    """A maintenance that was done through the ledger, then compacted away; the check has failed."""

    session: AgentSession
    systems: Systems
    checkpoint: Memory
    results: dict[str, Any]
    op_ids: list[str]


@pytest.fixture
def night(world: World, ledger: Ledger) -> Night:
    session, systems, memory = ledger.session(world.agent).open(), Systems(), Memory()
    systems.process()
    memory.token = session.checkpoint("before maintenance").token
    checkpoint = copy.deepcopy(memory)
    tools = ledger_tools(session, systems)
    results = maintain(memory, tools)
    op_ids = [tools[tool].op_id(*([BATCH] if tool == "cursor.advance" else [])) for tool in TOOLS]  # type: ignore[attr-defined]
    after_the_burst(memory)
    return Night(session, systems, checkpoint, results, op_ids)


def test_with_the_guard_the_rollback_is_refused_and_replay_goes_on(world: World, ledger: Ledger, night: Night) -> None:
    """Refused, naming the three effects; replayed forward, the restored agent has their results, and nothing runs twice."""
    systems = night.systems
    with pytest.raises(UnsafeRollbackError) as caught:
        night.session.rollback("before maintenance", restored=night.checkpoint.token)
    verdict = caught.value.verdict
    assert [reason.effect.op_id for reason in verdict.reasons] == night.op_ids
    assert [reason.effect.tool for reason in verdict.reasons] == list(TOOLS)
    assert {WayOn.REPLAY_FORWARD, WayOn.OPERATOR} <= set(verdict.ways_on)
    assert all(op_id in str(caught.value) for op_id in night.op_ids)
    night.session.close()

    memory = copy.deepcopy(night.checkpoint)
    mark = Watermark.find(memory.token)
    with ledger.session(world.agent, resumed_from=mark) as restored:
        replayed = restored.replay_forward()
        assert [(op.op_id, op.result) for op in replayed] == list(
            zip(night.op_ids, night.results.values(), strict=True)
        )
        for operation in replayed:
            memory.note(f"maintenance: {operation.tool} gave {operation.result}")
        assert memory.knows_of_maintenance
        assert maintain(memory, ledger_tools(restored, systems)) == night.results  # and if it asks all the same
        restored.checkpoint("after maintenance")
        assert world.preview("after maintenance").authorised

    assert systems.calls == ["rotate", "truncate", "advance"]
    assert systems.credentials == 2
    systems.process()
    systems.advance(BATCH)
    assert systems.skipped == []
    assert systems.processed == systems.records[: 2 * BATCH]


def test_gated_absorbs_what_is_asked_for_again(world: World, ledger: Ledger, night: Night) -> None:
    """With stable names going back is allowed: the maintenance is asked for again, and nothing of it runs."""
    successor = night.session.rollback("before maintenance", policy="gated", restored=night.checkpoint.token)
    memory = copy.deepcopy(night.checkpoint)
    assert not memory.knows_of_maintenance
    assert maintain(memory, ledger_tools(successor, night.systems)) == night.results
    assert night.systems.calls == ["rotate", "truncate", "advance"]
    successor.close()
    assert ledger.held(world.agent) == []


def test_gated_and_worded_differently_is_held(world: World, ledger: Ledger, night: Night) -> None:
    """The restored agent names the night's work differently: each call is held until an operator says what it is."""
    systems = night.systems
    successor = night.session.rollback("before maintenance", policy="gated", restored=night.checkpoint.token)
    tools = ledger_tools(successor, systems, wording="tonight's maintenance")
    for name, original in zip(TOOLS, night.op_ids, strict=True):
        arguments = [BATCH] if name == "cursor.advance" else []
        with pytest.raises(DivergenceHeldError) as caught:
            tools[name](*arguments)
        assert caught.value.candidates == [original]
        ledger.declare(
            world.agent, caught.value.op_id, same_as=original, by="ann", evidence="the same night, other words"
        )
        assert tools[name](*arguments) == night.results[name]
    assert systems.calls == ["rotate", "truncate", "advance"]
    assert (systems.credentials, systems.cursor, systems.skipped) == (2, BATCH, [])
    successor.close()
