"""Resume or reconcile: each rule by itself, and what the agent is then told."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
from unit.ledger.context_kit import STRUCTURE, compacted, context_of, marked
from unit.ledger.guard_kit import here
from unit.ledger.kit import (
    LEDGER_ID,
    agent_fact,
    at,
    committed,
    decided,
    effect,
    failed,
    intended,
    opened,
    point,
    requested,
    token,
)

from fencepost.ledger.errors import SummaryReconciliationError
from fencepost.ledger.facts import AgentFact, Dropped, EffectClass, EffectFact, ResultForm
from fencepost.ledger.guard import Evidence, SeenOperation
from fencepost.ledger.lineage import fold_agent
from fencepost.ledger.operation_fold import fold_operation
from fencepost.ledger.positions import Position
from fencepost.ledger.resume_answers import Reconcile, Resume
from fencepost.ledger.resumption import Found, Question, decide, unheld
from fencepost.ledger.verdicts import ReasonKind
from fencepost.ledger.watermarks import Watermark

KINDS = ReasonKind


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def op(name: str, *facts: EffectFact, unsafe: str = "", owner_ended: bool = False) -> SeenOperation:
    placed = at(*(replace(fact, op_id=name) for fact in facts))
    return SeenOperation(fold_operation(name, placed), unsafe, owner_ended)


def done(name: str, seq: int, value: Any = None, epoch: int = 0, **values: Any) -> SeenOperation:
    """An operation that a session of the agent carried out, its commit at this number."""
    form = ResultForm.NONE if value is None else ResultForm.JSON
    result = None if value is None else json.dumps(value, separators=(",", ":")).encode()
    return op(
        name,
        here(intended, name, seq - 1, epoch, **values),
        here(committed, name, seq, epoch, result=result, result_form=form, **values),
    )


NEVER_COMPACTED = (opened("s"), marked("c", "s", 0, 5))
COMPACTED = (opened("s"), compacted("s", 1, 5, token(0, 4), summary_digest=sha("summary 1")), marked("c", "s", 0, 6, 1))
SIGNED = token(0, 4)
"""What the summary of that compaction carries."""


def found(*operations: SeenOperation, life: tuple[AgentFact, ...] = NEVER_COMPACTED, **values: Any) -> Found:
    """What the ledger shows of the agent and checkpoint "c"."""
    context = context_of(*life)
    registered = context.checkpoints.get("c")
    usual: dict[str, Any] = {
        "registered": registered is not None,
        "operations": operations,
        "written": {session.epoch: 50 for session in context.agent.sessions.values()},
    }
    others = values.pop("others", ())
    unanswered = values.pop("unanswered", {})
    branch_id = registered.branch_id if registered else "main"
    mark = registered.mark if registered else None
    evidence = Evidence(LEDGER_ID, context.agent, branch_id, "c", mark, **{**usual, **values})
    return Found(evidence, context, others, unanswered)


def answer(shown: Found, generation: int = 0, **question: Any) -> Resume | Reconcile:
    return decide(shown, Question("c", generation, **question))


def reconcile(shown: Found, generation: int = 0, **question: Any) -> Reconcile:
    told = answer(shown, generation, **question)
    assert isinstance(told, Reconcile)
    return told


def kinds(told: Resume | Reconcile) -> list[ReasonKind]:
    return [reason.kind for reason in told.reasons] if isinstance(told, Reconcile) else []


def op_ids(told: Reconcile) -> list[str]:
    return [effect.op_id for effect in told.effects]


# -- 1: the checkpoint -----------------------------------------------------------------


def test_a_whole_context_is_resumed() -> None:
    """Nothing was compacted, and nothing happened after the checkpoint."""
    told = answer(found(done("a", 2), done("b", 5)))
    assert isinstance(told, Resume)
    assert (told.token, told.generation, told.branch_id) == (token(0, 5), 0, "main")
    assert told.raise_for_missing() is told
    assert told.to_dict()["answer"] == "RESUME"


@pytest.mark.parametrize(
    ("life", "values", "kind"),
    [
        ((opened("s"),), {}, KINDS.CHECKPOINT_NOT_REGISTERED),
        ((opened("s"), marked("c", "s", 0, 5, 3)), {}, KINDS.CHECKPOINT_DOES_NOT_COUNT),
        ((opened("s"), agent_fact("CHECKPOINTED", session_id="s", checkpoint_id="c", watermark="torn")), {},
         KINDS.WATERMARK_UNREADABLE),
        (NEVER_COMPACTED, {"written": {Position(0, 0): 4}}, KINDS.WATERMARK_AHEAD),
        (NEVER_COMPACTED, {"mark": Watermark("other", "agent", "main", Position(0, 0), 5)},
         KINDS.WATERMARK_OF_ANOTHER_LEDGER),
        ((*NEVER_COMPACTED, opened("t", token(0, 2))), {}, KINDS.CHECKPOINT_NOT_ON_PATH),
        ((*NEVER_COMPACTED, agent_fact("PRUNED", rollback_id="p")), {}, KINDS.CHECKPOINT_NOT_ON_PATH),
        ((*NEVER_COMPACTED, requested("r", token(0, 5))), {}, KINDS.ROLLBACK_PENDING),
        ((*NEVER_COMPACTED, marked("b", "s", 0, 2), requested("r", token(0, 2)), decided("r")), {},
         KINDS.CHECKPOINT_NOT_ON_PATH),
    ],
)  # fmt: skip
def test_a_checkpoint_that_cannot_be_used(
    life: tuple[AgentFact, ...], values: dict[str, Any], kind: ReasonKind
) -> None:
    """It is the one reason, and typed."""
    shown = found(life=life)
    shown = replace(shown, evidence=replace(shown.evidence, **values))
    assert kinds(answer(shown)) == [kind]


def test_an_agent_whose_log_cannot_be_read() -> None:
    """A kind that this version does not know may be anything."""
    agent = fold_agent("agent", at(*(f if f.kind.value in STRUCTURE else None for f in NEVER_COMPACTED)))
    agent.unsafe = "a fact of a kind from the future"
    shown = found()
    assert kinds(answer(replace(shown, evidence=replace(shown.evidence, agent=agent)))) == [KINDS.AGENT_UNSAFE]


def test_without_a_checkpoint_everything_must_be_learned() -> None:
    """Nothing is known to it, so the ledger's whole list is the answer."""
    told = reconcile(found(done("a", 2, "one"), done("b", 5), life=(opened("s"),)))
    assert op_ids(told) == ["a", "b"]
    assert told.token == ""
    assert told.raise_for_missing() is told


# -- 2: the summary --------------------------------------------------------------------


@pytest.mark.parametrize(("given", "kind"), [(0, KINDS.SUMMARY_OLDER), (1, None), (2, KINDS.SUMMARY_NEWER)])
def test_the_generations_must_agree(given: int, kind: ReasonKind | None) -> None:
    """An older summary and a newer one are told apart."""
    assert kinds(answer(found(life=COMPACTED), given)) == ([kind] if kind else [])


def test_a_newer_summary_must_name_what_the_checkpoint_knows() -> None:
    """It came from somewhere else than the checkpoint, which was never compacted itself."""
    told = reconcile(found(done("a", 3, "R")), 2, summary="nothing of it")
    assert kinds(told) == [KINDS.SUMMARY_NEWER, KINDS.EFFECT_NOT_NAMED]
    assert op_ids(told) == ["a"]
    assert kinds(answer(found(done("a", 3, "R")), 2, summary="a")) == [KINDS.SUMMARY_NEWER]


def test_an_older_summary_is_told_what_it_does_not_name() -> None:
    """What the older one found named counts, not what the newer one did; the list comes from the ledger."""
    life = (
        opened("s"), compacted("s", 1, 3, kept=("a",)), compacted("s", 2, 7, kept=("a", "b")), marked("c", "s", 0, 9, 2),
    )  # fmt: skip
    shown = found(done("a", 2), done("b", 5, "two"), done("d", 9), life=life)
    told = reconcile(shown, 1)
    assert kinds(told) == [KINDS.SUMMARY_OLDER, KINDS.EFFECT_NOT_NAMED, KINDS.EFFECT_NOT_NAMED]
    assert [(e.op_id, e.result) for e in told.effects] == [("b", "two"), ("d", None)]
    assert op_ids(reconcile(shown, 0)) == ["a", "b", "d"]
    assert op_ids(reconcile(shown, 2)) == ["d"]


def test_a_summary_that_was_recorded_as_another_one_is_noticed() -> None:
    """Whatever number the caller names: by another generation's text, or the same number's on another path."""
    life = (
        opened("s"), marked("a", "s", 0, 1), compacted("s", 1, 2, summary_digest=sha("left behind")),
        requested("r", token(0, 1)), decided("r"), opened("t", token(0, 1), segment="0.3"),
        compacted("t", 1, 2, summary_digest=sha("summary 1")), compacted("t", 2, 4, summary_digest=sha("summary 2")),
        marked("c", "t", 5, 5, 2),
    )  # fmt: skip
    shown = found(life=life)
    assert kinds(answer(shown, 2, summary="summary 2")) == []
    assert kinds(answer(shown, 2, summary="summary 2, with a later turn")) == []
    assert kinds(answer(shown, 2, summary="summary 1")) == [KINDS.SUMMARY_OF_ANOTHER_GENERATION]
    one = found(life=(*life[:7], marked("c", "t", 5, 3, 1)))
    assert kinds(answer(one, 1, summary="summary 1")) == []
    assert kinds(answer(one, 1, summary="left behind")) == [KINDS.SUMMARY_OF_ANOTHER_GENERATION]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"so far {token(0, 4)}", []),
        (f"so far {token(0, 6)}", []),
        (f"so far {token(0, 7)}", [KINDS.WATERMARK_MISMATCH]),
        (f"so far {token(0, 4)} and {token(9, 1)}", [KINDS.WATERMARK_MISMATCH]),
        (f"so far {token(0, 4)[:-4]}", [KINDS.WATERMARK_UNREADABLE]),
    ],
)
def test_tokens_in_the_restored_summary(text: str, expected: list[ReasonKind]) -> None:
    """A damaged one, and one that the checkpoint does not know, say that state and summary did not move together."""
    assert kinds(answer(found(life=COMPACTED), 1, summary=text)) == expected
    assert kinds(answer(found(life=COMPACTED), 1, summary=text, state=token(0, 6))) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no token", None),
        (f"its own {token(0, 6)}", None),
        (f"its own {token(0, 6)} beside its summary's {SIGNED}", None),
        (f"its own {token(0, 6)} beside others' {token(0, 9, agent='other')} {token(0, 9, ledger_id='other')}", None),
        (f"an older one {token(0, 3)}", KINDS.WATERMARK_MISMATCH),
        (f"its summary's alone {SIGNED}", KINDS.WATERMARK_MISMATCH),
        (f"a later one {token(0, 7)}", KINDS.WATERMARK_MISMATCH),
        (f"of a session that nobody has seen {token(0, 6)} {token(9, 1)}", KINDS.WATERMARK_MISMATCH),
        (f"a damaged one {token(0, 6)[:-4]}", KINDS.WATERMARK_UNREADABLE),
        (f"another agent's {token(0, 6, agent='other')}", KINDS.WATERMARK_OF_ANOTHER_LEDGER),
        (f"another ledger's {token(0, 6, ledger_id='other')}", KINDS.WATERMARK_OF_ANOTHER_LEDGER),
    ],
)
def test_tokens_in_the_restored_state(text: str, expected: ReasonKind | None) -> None:
    """A state that holds a token holds its checkpoint's, whatever its summary carries; without one the caller is believed."""
    whole = f"a {SIGNED}"
    for generation, life in ((0, (opened("s"), marked("c", "s", 0, 6))), (1, COMPACTED)):
        for summary in ("", whole):
            told = answer(found(done("a", 3, "R"), life=life), generation, summary=summary, state=f"a {text}")
            assert kinds(told) == ([expected] if expected else [])
            if isinstance(told, Reconcile):
                assert token(0, 6) in told.reasons[0].text


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        (token(0, 2), ["b", "d", "e"]),
        (token(0, 9), ["e"]),
        (token(9, 1), ["a", "b", "d", "e"]),
        (token(0, 6)[:-4], ["a", "b", "d", "e"]),
        (token(0, 6, ledger_id="other"), ["a", "b", "d", "e"]),
    ],
)
def test_what_a_state_of_elsewhere_does_not_know_is_told(text: str, unknown: list[str]) -> None:
    """What happened since its own token, or everything if that cannot be told; calls outside the ledger alike."""
    life = (opened("s"), marked("b", "s", 0, 2), marked("c", "s", 0, 6))
    calls = [agent_fact("CALL_REPORTED", epoch=Position(0, 0), seq=seq, tool="shell") for seq in (1, 4, 7)]
    shown = found(done("a", 2), done("b", 3), done("d", 5), done("e", 9), life=life, calls=calls)
    told = reconcile(shown, state=text)
    assert op_ids(told) == unknown
    names = {1: "a", 4: "b", 7: "e"}
    assert [names[call.seq] for call in told.calls] == [name for name in unknown if name in names.values()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no token", KINDS.SUMMARY_WITHOUT_TOKEN),
        (f"of others {token(0, 9, agent='other')} {token(0, 9, ledger_id='other')}", KINDS.SUMMARY_FOREIGN),
        (f"an older one {token(0, 3)}", KINDS.SUMMARY_OLDER),
        (f"a damaged one {SIGNED[:-4]}", KINDS.WATERMARK_UNREADABLE),
    ],
)
def test_the_summary_must_carry_its_compactions_token(text: str, expected: ReasonKind) -> None:
    """The number alone shows nothing: each is told apart, with the token to look for; an intact one elsewhere does not help."""
    for state in ("", f"its checkpoint's {token(0, 6)}"):
        told = reconcile(found(life=COMPACTED), 1, summary=text, state=state)
        assert kinds(told) == [expected]
        assert SIGNED in told.reasons[0].text
    assert kinds(answer(found(), 0, summary=text)) == (
        [expected] if expected is KINDS.WATERMARK_UNREADABLE else []  # no compaction, so none to be of
    )


def test_a_token_of_another_compaction_is_named() -> None:
    """An older one, a newer one, and one on a path that was left behind are told apart, whatever number is named."""
    life = (
        opened("s"), compacted("s", 1, 2, token(0, 1)), compacted("s", 2, 4, token(0, 3)), marked("c", "s", 0, 5, 2),
        compacted("s", 3, 8, token(0, 7)),
    )  # fmt: skip
    shown = found(life=life)
    assert kinds(answer(shown, 2, summary=f"two {token(0, 3)}")) == []
    older = reconcile(shown, 2, summary=f"one {token(0, 1)}")
    assert kinds(older) == [KINDS.SUMMARY_OLDER]
    assert "generation 1 of branch main" in older.reasons[0].text
    newer = reconcile(shown, 2, summary=f"two {token(0, 3)}, three {token(0, 7)}")
    assert kinds(newer) == [KINDS.SUMMARY_NEWER, KINDS.WATERMARK_MISMATCH]
    assert "generation 3 of branch main" in newer.reasons[0].text
    assert kinds(answer(shown, 1, summary=f"one {token(0, 1)}")) == [KINDS.SUMMARY_OLDER]
    left = (
        opened("s"), marked("a", "s", 0, 1), compacted("s", 1, 4, token(0, 3)), requested("r", token(0, 1)), decided("r"),
        opened("t", token(0, 1), segment="0.3"), compacted("t", 1, 2, token(5, 1)), marked("c", "t", 5, 3, 1),
    )  # fmt: skip
    beside = reconcile(found(life=left), 1, summary=f"of what was left behind {token(0, 3)}")
    assert kinds(beside) == [KINDS.SUMMARY_OF_ANOTHER_GENERATION, KINDS.WATERMARK_MISMATCH]


def test_a_summary_whose_compaction_was_refused() -> None:
    """Its text was never taken for anybody's: it is told apart even where its token fits."""
    life = (
        opened("s"), compacted("s", 2, 3, token(0, 2), summary_digest=sha(f"two {token(0, 2)}")),
        compacted("s", 1, 4, token(0, 3), summary_digest=sha(f"refused {token(0, 3)}")), marked("c", "s", 0, 5, 2),
    )  # fmt: skip
    shown = found(life=life)
    assert kinds(answer(shown, 2, summary=f"two {token(0, 2)}")) == []
    told = reconcile(shown, 2, summary=f"refused {token(0, 3)}")
    assert kinds(told) == [KINDS.SUMMARY_OF_ANOTHER_GENERATION]
    assert "is not newer than 2" in told.reasons[0].text


# -- 3: after the checkpoint -----------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        (done("x", 7, "r"), KINDS.EFFECT_NOT_KNOWN),
        (done("x", 7, effect_class=EffectClass.IDEMPOTENT), KINDS.EFFECT_ORDER_DEPENDENT),
        (op("x", here(intended, "x", 7)), KINDS.EFFECT_OWNED),
        (op("x", here(intended, "x", 7), owner_ended=True), KINDS.EFFECT_IN_DOUBT),
        (op("x", here(intended, "x", 3), here(committed, "x", 4), unsafe="torn"), KINDS.EFFECT_UNSAFE),
        (done("x", 7, effect_class=EffectClass.READ), None),
        (done("x", 7, effect_class=EffectClass.REPEATABLE), None),
        (done("x", 7, effect_class=EffectClass.IDEMPOTENT, order_safe=True), None),
        (op("x", here(intended, "x", 7), here(failed, "x", 8)), None),
        (done("x", 5), None),
    ],
)
def test_what_happened_after_the_checkpoint_must_be_learned(operation: SeenOperation, kind: ReasonKind | None) -> None:
    """Except what may be repeated; the checkpoint's own effects are known to it."""
    told = answer(found(operation))
    assert kinds(told) == ([kind] if kind else [])
    if isinstance(told, Reconcile):
        assert op_ids(told) == ["x"]


def test_calls_outside_of_the_ledger_count() -> None:
    """They have no op id by which the context could name them."""
    call = agent_fact(
        "CALL_REPORTED",
        tool="shell",
        effect_class=EffectClass.IRREVERSIBLE,
        epoch=Position(0, 0),
        seq=7,
        session_id="s",
    )
    assert kinds(answer(found(calls=[call]))) == [KINDS.CALL_OUTSIDE_LEDGER]
    assert kinds(answer(found(calls=[replace(call, seq=5)]))) == []
    assert kinds(answer(found(calls=[replace(call, effect_class=EffectClass.READ)]))) == []


def test_what_was_open_at_the_checkpoint_is_shown_as_it_is_now() -> None:
    """Committed since, in doubt, failed, unsafe, or gone."""
    owned = ("a", "b", "d", "e", "f")
    life = (opened("s"), marked("c", "s", 0, 5, owned=owned))
    told = reconcile(
        found(
            done("a", 9),
            op("b", here(intended, "b", 4), owner_ended=True),
            op("d", here(intended, "d", 3), here(failed, "d", 9)),
            op("e", here(intended, "e", 4), unsafe="torn"),
            life=life,
        )
    )
    assert told.open_operations == {"a": "committed", "b": "in doubt", "d": "free", "e": "unsafe", "f": "free"}
    assert kinds(told) == [KINDS.EFFECT_IN_DOUBT, KINDS.EFFECT_UNSAFE, KINDS.EFFECT_NOT_KNOWN]


# -- 4: what the summary lost ----------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "named"),
    [
        ({"summary": f"a is done {SIGNED}"}, True),
        ({"summary": f"please do A {SIGNED}", "state": "done: [a]"}, True),
        ({"summary": f"please do A; about it was heard nothing {SIGNED}"}, False),
        ({"state": "nothing of it"}, False),
        ({"state": "a"}, True),
        ({}, False),
    ],
)
def test_a_summary_that_lost_the_action_is_reconciled(question: dict[str, str], named: bool) -> None:
    """An effect must be named by its id, in the summary or the state, once the context was compacted."""
    told = answer(found(done("a", 3, "R"), life=COMPACTED), 1, **question)
    assert kinds(told) == ([] if named else [KINDS.EFFECT_NOT_NAMED])
    if isinstance(told, Reconcile):
        assert [(e.op_id, e.result) for e in told.effects] == [("a", "R")]
        assert told.reasons[0].effect is not None
        assert told.reasons[0].effect.op_id == "a"


def test_without_a_summary_what_its_compaction_found_counts() -> None:
    """What was done after that is not in it; a summary that is given speaks for itself."""
    life = (opened("s"), compacted("s", 1, 5, kept=("a",)), marked("c", "s", 0, 8, 1))
    shown = found(done("a", 3), done("b", 7), life=life)
    assert op_ids(reconcile(shown, 1)) == ["b"]
    assert kinds(answer(shown, 1, state="and b")) == []
    assert op_ids(reconcile(shown, 1, summary="b alone")) == ["a"]


@pytest.mark.parametrize(
    "operation",
    [
        done("a", 3, effect_class=EffectClass.READ),
        done("a", 3, effect_class=EffectClass.REPEATABLE),
        op("a", here(intended, "a", 2), effect("FAILED", "a")),
    ],
)
def test_what_need_not_be_named(operation: SeenOperation) -> None:
    """Reads, what may be repeated, and what certainly did not happen."""
    assert kinds(answer(found(operation, life=COMPACTED), 1, summary=f"nothing {SIGNED}")) == []


def test_what_was_absorbed_must_be_named_as_well() -> None:
    """The agent relies on it, whoever did it."""
    foreign = op("a", intended("x", agent_id="other"), committed("x", agent_id="other", seq=1, epoch=Position(0, 9)))
    shown = found(foreign, life=COMPACTED, absorbed={("a", 1): [point(0, 3)]})
    assert kinds(answer(shown, 1, summary=f"nothing {SIGNED}")) == [KINDS.EFFECT_NOT_NAMED]
    assert op_ids(reconcile(shown, 1, summary=f"nothing {SIGNED}")) == ["a"]
    beside = found(foreign, life=COMPACTED, absorbed={("a", 1): [point(0, 30)]})
    assert kinds(answer(beside, 1, summary=f"nothing {SIGNED}")) == [KINDS.EFFECT_NOT_KNOWN]


def test_dropped_results_of_lost_effects_come_back() -> None:
    """Where the drop manifest does not say that it was another text."""
    shown: tuple[tuple[tuple[str, str], dict[str, str]], ...] = (
        (("a", sha('"R"')), {"a": "R"}),
        (("a", ""), {"a": "R"}),
        (("a", sha("another")), {}),
        (("z", ""), {}),
    )
    for (reference, digest), recovered in shown:
        life = (
            opened("s"), compacted("s", 1, 5, dropped=(Dropped(reference, digest),)), marked("c", "s", 0, 6, 1),
        )  # fmt: skip
        told = reconcile(found(done("a", 3, "R"), life=life), 1)
        assert (told.recovered, told.missing) == (recovered, {})


# -- 5: undone since -------------------------------------------------------------------


def undone_operation(*more: EffectFact) -> SeenOperation:
    facts = [here(intended, "a", 2), here(committed, "a", 3)]
    undo = effect("COMPENSATED", "u", agent_id="", by="ann", losses=("a mail was sent",), version="0.1")
    return op("a", *facts, undo, *more)


def test_what_was_undone_since_is_told() -> None:
    """The checkpoint has it as done; the loss that was accepted is shown, also when all is well otherwise."""
    told = reconcile(found(undone_operation()))
    assert kinds(told) == [KINDS.EFFECT_UNDONE]
    assert [(u.op_id, u.round, u.by, u.undo_op_id) for u in told.undone] == [("a", 1, "ann", "undo:a:1")]
    assert (told.effects, told.losses) == ((), {"a": ("a mail was sent",)})
    assert told.to_dict()["undone"][0]["undo_op_id"] == "undo:a:1"
    named = answer(found(undone_operation()), state="took it back as undo:a:1")
    assert isinstance(named, Resume)
    assert named.to_dict()["losses"] == {"a": ["a mail was sent"]}


def test_who_knows_a_later_round_knows_of_the_undo() -> None:
    """And an undo of what the checkpoint does not know is nothing to it."""
    again = undone_operation(here(intended, "b", 4, round=2), here(committed, "b", 5, round=2))
    assert kinds(answer(found(again))) == []
    later = undone_operation(here(intended, "b", 8, round=2), here(committed, "b", 9, round=2))
    assert kinds(answer(found(later))) == [KINDS.EFFECT_NOT_KNOWN, KINDS.EFFECT_UNDONE]
    unknown = op("a", here(intended, "a", 7), here(committed, "a", 8), effect("COMPENSATED", "u", version="0.1"))
    assert kinds(answer(found(unknown))) == []


def test_what_others_did_and_was_undone_is_told_to_who_absorbed_it() -> None:
    """An attempt that lost, and of whose end its agent never learned, is no knowledge of it."""
    foreign = {"agent_id": "other", "epoch": Position(0, 9)}
    did = (intended("x", seq=1, **foreign), committed("x", seq=2, **foreign))
    lost = op("a", did[0], here(intended, "m", 3), did[1], effect("COMPENSATED", "u", version="0.2"))
    assert kinds(answer(found(lost))) == []
    assert kinds(answer(found(lost, absorbed={("a", 1): [point(0, 4)]}))) == [KINDS.EFFECT_UNDONE]
    assert kinds(answer(found(lost, absorbed={("a", 1): [point(0, 9)]}))) == []


def test_an_open_operation_that_was_undone_since_is_told() -> None:
    """The checkpoint knows that it was begun."""
    begun = op(
        "a", here(intended, "a", 4), here(committed, "a", 8), effect("COMPENSATED", "u", by="ann", version="0.1")
    )
    assert kinds(answer(found(begun))) == [KINDS.EFFECT_UNDONE]


# -- 6: dependencies -------------------------------------------------------------------


def test_what_the_next_turn_depends_on_must_be_there() -> None:
    """Present word for word; otherwise recovered, or missing, and then it is refused."""
    life = (
        opened("s"), compacted("s", 1, 5, kept=("a",), dropped=(Dropped("doc", sha("the text")),)),
        marked("c", "s", 0, 6, 1),
    )  # fmt: skip
    shown = found(done("a", 3, {"id": "R-17"}), life=life)
    wanted = (Dropped("a"), Dropped("doc"))
    whole = 'a gave {"id":"R-17"}; the text.'
    assert isinstance(answer(shown, 1, depends_on=wanted, summary=whole, held={"doc": "the text"}), Resume)
    told = reconcile(shown, 1, depends_on=wanted, summary="a gave R-17", held={"doc": "the text"})
    assert kinds(told) == [KINDS.DEPENDENCY_NOT_PRESENT, KINDS.DEPENDENCY_NOT_PRESENT]
    assert told.recovered == {"a": {"id": "R-17"}, "doc": "the text"}
    assert told.raise_for_missing() is told
    missing = reconcile(shown, 1, depends_on=wanted, summary=whole)
    assert unheld(shown, Question("c", 1, wanted, whole)) == ("doc",)
    with pytest.raises(SummaryReconciliationError) as caught:
        missing.raise_for_missing()
    assert not caught.value.retryable
    assert list(caught.value.missing) == ["doc"]
    assert caught.value.recovered == {}
    assert "doc" in str(caught.value)


def test_operations_of_others_can_be_depended_on() -> None:
    """They are no effects of this agent's."""
    other = op(
        "z",
        intended("x", agent_id="other"),
        committed("x", agent_id="other", result=b'"R-9-long"', result_form=ResultForm.JSON),
    )
    shown = found(others=[other])
    assert kinds(answer(shown, depends_on=(Dropped("z"),), state="R-9-long")) == []
    assert reconcile(shown, depends_on=(Dropped("z"),)).recovered == {"z": "R-9-long"}


def test_bytes_are_told_as_base64() -> None:
    """JSON has no bytes."""
    digest = hashlib.sha256(b"\xff").hexdigest()
    told = reconcile(found(), depends_on=(Dropped("doc", digest),), held={"doc": b"\xff"})
    assert told.recovered == {"doc": b"\xff"}
    assert told.to_dict()["recovered"] == {"doc": {"$bytes": "/w=="}}
    json.dumps(told.to_dict())
