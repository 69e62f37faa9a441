"""What is projected does not depend on how the log is cut into steps, nor on what the fold still has at hand."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import example, given, settings
from hypothesis import strategies as st

from fencepost.ledger import log_keys
from fencepost.ledger.facts import EffectClass, EffectFact, EffectKind, Outcome, encode_effect
from fencepost.ledger.history import History, LogEntry, PositionedFact, Record, names_a_summary
from fencepost.ledger.operation_fold import fold_operation
from fencepost.ledger.ports import DocumentKey, Header
from fencepost.ledger.positions import Partition, Position, Topic
from fencepost.ledger.projection import OPEN, OPS, PartitionFold, read_history

PLACE = Partition(Topic.EFFECTS, 0)
OPS_OF = ("pay", "mail")
FENCE = log_keys.fence("agent", "main", 0, lambda _: 0)
OFTEN = (EffectKind.INTENDED, EffectKind.REJECTED, EffectKind.COMMITTED, EffectKind.FAILED, EffectKind.IN_DOUBT)
SELDOM = tuple(kind for kind in EffectKind if kind is not EffectKind.SUMMARISED)
few = st.sampled_from


@dataclass(frozen=True)
class Word:
    """One record to be written: its key, its fact, and which of the facts before it its writer leaves out."""

    key: str
    fact: EffectFact | None
    forgets: int


def words() -> st.SearchStrategy[Word]:
    effects = st.builds(
        EffectFact,
        kind=few(OFTEN) | few(OFTEN) | few(SELDOM),
        attempt_id=few(["a", "b"]),
        agent_id=few(["agent", ""]),
        branch_id=st.just("main"),
        epoch=st.builds(Position, st.just(0), st.integers(0, 3)),
        seq=st.integers(0, 3),
        round=few([1, 1, 1, 2]),
        effect_class=few([EffectClass.IRREVERSIBLE, EffectClass.READ]),
        outcome=few(Outcome),
        version=st.integers(0, 12).map("0.{}".format),
        plan_digest=few(["", "p"]),
    )
    on = st.builds(
        lambda key, fact, forgets: Word(key, EffectFact(**{**vars(fact), "op_id": key}), forgets),
        few(OPS_OF), effects, few([0, 0, 0, 1, 2, 9]),
    )  # fmt: skip
    fences = st.integers(0, 3).map(
        lambda epoch: Word(
            FENCE, EffectFact(kind=EffectKind.FENCED, agent_id="agent", branch_id="main", epoch=Position(0, epoch)), 0
        )
    )
    again = st.builds(Word, few(OPS_OF), st.none(), few([0, 1]))
    return st.one_of(on, on, on, fences, again)


def entries(said: list[Word]) -> list[LogEntry]:
    """The log that these writers leave."""
    known: dict[str, list[PositionedFact]] = {}
    log = []
    for offset, word in enumerate(said):
        facts = known.setdefault(word.key, [])
        copied: History = tuple(sorted(facts)[word.forgets :])
        fact = encode_effect(word.fact) if word.fact else None
        if fact:
            facts.append(PositionedFact(Position(0, offset), fact))
        log.append(LogEntry(PLACE, offset, 1000 + offset, word.key, Record(word.key, copied, fact)))
    return log


def projected(log: list[LogEntry], cuts: set[int], *, anew: bool, header: Header) -> dict[DocumentKey, bytes]:
    """The documents after the log, in steps that end at `cuts`; `anew`: each step begins with nothing at hand."""
    documents: dict[DocumentKey, bytes] = {}
    fold = PartitionFold(PLACE, header, {})
    debts = {}
    for entry in log:
        while needed := fold.needs(entry):
            fold.provide({key: documents.get(key) for key in needed})
            if not names_a_summary(entry):
                break
        fold.apply(entry)
        if entry.offset in cuts or entry is log[-1]:
            step = fold.take_step()
            for key, value in step.writes.items():
                documents.pop(key, None)
                if value is not None:
                    documents[key] = value
            debts, header = fold.debts, step.header
            if anew:
                fold = PartitionFold(PLACE, header, debts)
    documents[DocumentKey("header", "")] = repr(header).encode()
    return documents


def word(kind: str, attempt_id: str) -> Word:
    return Word("pay", EffectFact(kind=EffectKind(kind), op_id="pay", attempt_id=attempt_id), 0)


@settings(deadline=None, max_examples=400)
@example([word("INTENDED", "a"), word("REJECTED", "a"), word("INTENDED", "b")], set(), True)
@example([word("REJECTED", "a"), word("INTENDED", "a")], set(), True)
@given(st.lists(words(), min_size=1, max_size=14), st.sets(st.integers(0, 14)), st.booleans())
def test_the_cuts_do_not_matter(said: list[Word], cuts: set[int], opened: bool) -> None:
    """One step for everything, any steps, or each record alone and read back: the same documents, and the same header."""
    log = entries(said)
    header = Header(incarnation="i", opened=opened, horizon=100)
    alone = projected(log, set(range(len(log))), anew=True, header=header)
    assert projected(log, set(), anew=False, header=header) == alone
    assert projected(log, cuts, anew=False, header=header) == alone
    for key, document in alone.items():
        if key.collection == OPS and DocumentKey(OPEN, key.key) in alone:
            status = fold_operation(key.key, read_history(document)).status
            assert alone[DocumentKey(OPEN, key.key)] == status.value.encode()
