"""A recorded read that was read again: each of its results is recorded, and none is taken for another one."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from conformance.worlds import until

from fencepost.ledger import (
    AgentSession,
    AsyncLedger,
    EffectClass,
    Ledger,
    NotFoundError,
    Reconcile,
    Resume,
    SummaryReconciliationError,
)
from fencepost.ledger.settling import MOST_READINGS

if TYPE_CHECKING:
    from conformance.worlds import World

READ: dict[str, Any] = {"kind": EffectClass.READ, "key": lambda name: name, "record": True}


def sha(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


class Doc:
    """A document that may be another one each time."""

    def __init__(self, world: World, session: AgentSession) -> None:
        self.name = world.key("doc")
        self.text: Any = "the first version"
        self.reads = 0
        tool = session.effect("doc.read", **READ)(self._read)
        self.op_id = tool.op_id(self.name)
        self._tool = tool

    def _read(self, name: str) -> Any:
        assert name == self.name
        self.reads += 1
        return self.text

    def gives(self, text: Any) -> None:
        self.text = text
        assert self._tool(self.name) == text


def recorded(ledger: Ledger, doc: Doc) -> list[Any]:
    try:
        told = ledger.operation(doc.op_id).operation.told
    except NotFoundError:  # not applied yet: a read waits for nothing
        return []
    return [json.loads(fact.result) if fact.result is not None else None for fact in told]


def compacted(session: AgentSession, text: str, dropped: Any) -> dict[str, Any]:
    """Compact to this text and take checkpoint "c"; how to ask for it."""
    summary = f"{text}\n{session.watermark().token}"
    session.record_compaction(summary=summary, dropped=dropped)
    session.checkpoint("c")
    return {"checkpoint": "c", "summary_generation": 1, "summary": summary}


def test_what_was_read_again_is_not_taken_for_what_was_read(world: World, ledger: Ledger) -> None:
    """The context held the newer one: the older one is not brought back for it, and neither is the newer one guessed."""
    with ledger.session(world.agent) as session:
        doc = Doc(world, session)
        doc.gives("the first version")
        doc.gives("the first version")
        doc.gives("the second version")
        doc.gives("the first version")
        assert doc.reads == 4
        asked = compacted(session, "read it", [doc.op_id])
        until(lambda: len(recorded(ledger, doc)) == 2)
        assert recorded(ledger, doc) == ["the first version", "the second version"]
        answer = ledger.resume(world.agent, depends_on=[doc.op_id], **asked)
        assert isinstance(answer, Reconcile)
        assert answer.recovered == {}
        assert answer.missing == {
            doc.op_id: "it gave 2 results, and no digest says which one is meant; "
            "no digest of it is known, so no text can be believed to be it"
        }
        with pytest.raises(SummaryReconciliationError):
            answer.raise_for_missing()
        for text in ("the first version", "the second version"):
            by_digest = ledger.reconcile(world.agent, depends_on=[(doc.op_id, sha(text))], **asked)
            assert isinstance(by_digest, Reconcile)
            assert by_digest.recovered == {doc.op_id: text}
            one = ledger.resume(world.agent, depends_on=[doc.op_id], state=text, **asked)
            assert isinstance(one, Reconcile)
            assert list(one.missing) == [doc.op_id]
        both = "the first version, the second version"
        assert isinstance(ledger.resume(world.agent, depends_on=[doc.op_id], state=both, **asked), Resume)
    report = ledger.verify()
    assert report.ok, report


def test_the_digest_of_what_was_dropped_says_which_one_it_was(world: World, ledger: Ledger) -> None:
    """By the text that the compaction dropped; a later drop that names none may mean any of them."""
    with ledger.session(world.agent) as session:
        doc = Doc(world, session)
        doc.gives("the first version")
        doc.gives("the second version")
        asked = compacted(session, "read it", [(doc.op_id, json.dumps("the second version"))])
        until(lambda: len(recorded(ledger, doc)) == 2)
        answer = ledger.reconcile(world.agent, depends_on=[doc.op_id], **asked)
        assert isinstance(answer, Reconcile)
        assert answer.recovered == {doc.op_id: "the second version"}
        summary = f"read it\n{session.watermark().token}"
        session.record_compaction(summary=summary, dropped=[doc.op_id])
        session.checkpoint("d")
        later = ledger.resume(
            world.agent, checkpoint="d", summary_generation=2, summary=summary, depends_on=[doc.op_id]
        )  # fmt: skip
        assert isinstance(later, Reconcile)
        assert list(later.missing) == [doc.op_id]


def test_what_is_read_over_and_over_is_kept_within_bounds(world: World, ledger: Ledger) -> None:
    """A read may be read for ever, and none of so many results is taken for the fact."""
    with ledger.session(world.agent) as session:
        doc = Doc(world, session)
        for number in range(3 * MOST_READINGS):
            doc.gives(number)
            session.watermark()  # waits until what was read is recorded
            until(lambda number=number: len(recorded(ledger, doc)) == min(number + 1, MOST_READINGS))
        asked = compacted(session, f"{doc.op_id} gave 0", [doc.op_id])
        answer = ledger.resume(world.agent, depends_on=[doc.op_id], **asked)
        assert isinstance(answer, Reconcile)
        assert list(answer.missing) == [doc.op_id]
    assert len(recorded(ledger, doc)) == MOST_READINGS


def test_results_of_two_sessions_and_of_the_asyncio_face(world: World, ledger: Ledger) -> None:
    """Whoever read it again, in whatever way; what cannot be encoded is another result, too."""

    async def again(text: Any) -> None:
        async with AsyncLedger.open(world.url) as other, other.session(world.agent, branch="side") as session:

            @session.effect("doc.read", **READ)
            async def read(name: str) -> Any:
                return text

            assert await read(world.key("doc")) is text

    with ledger.session(world.agent) as session:
        doc = Doc(world, session)
        doc.gives("the first version")
        session.watermark()
        until(lambda: recorded(ledger, doc))
        asyncio.run(again("the second version"))
        until(lambda: len(recorded(ledger, doc)) == 2)
        asyncio.run(again(object()))
        until(lambda: len(recorded(ledger, doc)) == 3)
        asyncio.run(again(None))
        until(lambda: len(recorded(ledger, doc)) == 4)
    assert recorded(ledger, doc) == ["the first version", "the second version", None, None]
