"""Resuming a restored agent: gathers what `resumption.decide` rests on, and asks the caller's own source.

    1. read the agent, all that it attempted or absorbed, and what the next turn depends on
    2. while an effect looks under way, or the checkpoint ahead, look again for a moment: what was
       just written may not be applied yet
    3. ask the caller's resolver for what neither the ledger nor the caller brings back
    4. decide

Nothing is written and nobody is fenced: the answer is as of its age. Whoever opens the session that goes
on first, and asks then, has fenced the predecessor in every partition, so that nothing of it is under way.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace

from .compaction_rules import text_digest
from .dependencies import DependencyItem, dependencies
from .engine import Engine
from .errors import InvalidArgumentError
from .facts import AgentFact
from .gathering import gather, those_of_the_ledger
from .guard import SeenOperation
from .identity import check_id
from .operations import Status
from .resume_answers import Reconcile, Resume
from .resumption import Found, Question, decide, unheld
from .rollbacks import UNDER_WAY_S
from .sessions import require_generation
from .strangers import told, told_of
from .verdicts import ReasonKind
from .view import age_s

Resolver = Callable[[str], str | bytes | Awaitable[str | bytes | None] | None]
"""Finds the text behind a reference in the caller's own, immutable source; None if it has none."""

_LOOK_AGAIN_S = 0.05
_PASSING = frozenset({ReasonKind.EFFECT_OWNED, ReasonKind.WATERMARK_AHEAD})


def question(
    checkpoint: str,
    summary_generation: int,
    *,
    depends_on: Iterable[DependencyItem] = (),
    summary: str = "",
    state: str = "",
    held: Mapping[str, str | bytes] | None = None,
) -> Question:
    """The question, its arguments checked. Raises InvalidArgumentError naming the field."""
    require_generation(summary_generation, "summary_generation")
    for field, text in (("summary", summary), ("state", state), *((f"held {name!r}", t) for name, t in _items(held))):
        if not isinstance(text, str) and not (isinstance(text, bytes) and field.startswith("held")):
            raise InvalidArgumentError(
                f"{field}: must be text, not {type(text).__name__}.",
                next_step="Pass a str; what is held for a reference may be bytes.",
                field=field.partition(" ")[0],
            )
        text_digest(text, field.partition(" ")[0])
    return Question(
        check_id("checkpoint", checkpoint),
        summary_generation,
        dependencies(depends_on),
        summary,
        state,
        dict(held or {}),
    )


def _items(held: object) -> Iterable[tuple[str, object]]:
    if held is None:
        return ()
    if isinstance(held, Mapping):
        return held.items()
    raise InvalidArgumentError(
        f"held: must be a mapping of references to texts, not {type(held).__name__}.",
        next_step="Pass held={'doc:1': text}.",
        field="held",
    )


async def resume(
    engine: Engine, agent_id: str, asked: Question, *, resolve: Resolver | None = None
) -> Resume | Reconcile:
    """Whether the agent may go on from the restored state as it is. See the module for the steps.

    Raises NotFoundError (the ledger has never seen the agent), InvalidArgumentError, StaleProjectionError.
    """
    if resolve is not None and not callable(resolve):
        raise InvalidArgumentError(
            f"resolve: must be a function, not {type(resolve).__name__}.",
            next_step="Pass one that takes a reference and gives its text; texts at hand are handed over by `held=`.",
            field="resolve",
        )
    patience = engine.clock.monotonic() + UNDER_WAY_S
    while True:
        found = await _gather(engine, agent_id, asked)
        answer = await asyncio.to_thread(decide, found, asked)
        if not _passing(found, answer) or engine.clock.monotonic() >= patience:
            break
        await asyncio.sleep(_LOOK_AGAIN_S)
    if resolve is None or not (open_ := await asyncio.to_thread(unheld, found, asked)):
        return answer
    operations = {seen.operation.op_id: seen for seen in (*found.others, *found.evidence.operations)}
    held, unanswered = await _asked(open_, resolve, operations)
    found = replace(found, unanswered=unanswered)
    return await asyncio.to_thread(decide, found, replace(asked, held={**asked.held, **held}))


def _passing(found: Found, answer: Resume | Reconcile) -> bool:
    """Whether the answer may be another one in a moment."""
    if isinstance(answer, Resume):
        return False
    return any(r.kind in _PASSING for r in answer.reasons) or any(
        seen.operation.status is Status.OWNED and not seen.owner_ended for seen in found.others
    )


async def _gather(engine: Engine, agent_id: str, asked: Question) -> Found:
    view = await engine.view.known_agent(agent_id)

    async def calls(agent_id: str) -> list[AgentFact]:  # who goes on must know of them, acknowledged or not
        return [one.call for one in await engine.view.reported(agent_id)]

    evidence = await gather(engine, view, asked.checkpoint_id, calls=calls)
    known = {seen.operation.op_id for seen in evidence.operations}
    wanted = [dependency.reference for dependency in asked.depends_on if dependency.reference not in known]
    others = await those_of_the_ledger(engine, wanted)
    return Found(evidence, view.context, list(others.values()), age_s=age_s(view.header))


async def _asked(
    references: Iterable[str], resolve: Resolver, operations: Mapping[str, SeenOperation]
) -> tuple[dict[str, str | bytes], dict[str, str]]:
    """(reference → text, reference → why there is none), from the caller's resolver, in a thread of its own."""
    held: dict[str, str | bytes] = {}
    why: dict[str, str] = {}
    for reference in references:
        try:
            answer: object = await asyncio.to_thread(resolve, reference)
            if inspect.isawaitable(answer):
                answer = await answer
        except Exception as error:  # noqa: BLE001 (a resolver may raise anything; then there is no text)
            seen = operations.get(reference)
            said = told(error) if seen is None else told_of(error, seen.operation)
            why[reference] = f"the resolver failed: {said}"[:300]
            continue
        if isinstance(answer, (str, bytes)):
            held[reference] = answer
        else:
            why[reference] = "the resolver has no text of it" if answer is None else "the resolver answered no text"
    return held, why
