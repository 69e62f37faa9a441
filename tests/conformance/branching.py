"""Sibling branches of one agent, forked from one checkpoint, and effects that they make."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from conformance.worlds import World, until

from fencepost.ledger import AgentSession, BranchEffect, EffectClass, Ledger, PruneVerdict, UndoPath
from fencepost.ledger.operations import Status

if TYPE_CHECKING:
    from collections.abc import Coroutine

ACTION = "undo.branch"


@dataclass
class Siblings:
    """An agent whose main branch has a checkpoint "c", and branches that were forked from it, opened."""

    world: World
    names: tuple[str, ...] = ("a", "b")
    ledger: Ledger = field(init=False)
    sessions: dict[str, AgentSession] = field(default_factory=dict)
    _open: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        self.ledger = self.world.ledger
        main = self._open.enter_context(self.ledger.session(self.world.agent))
        self.sessions["main"] = main
        main.checkpoint("c")
        for name in self.names:
            self.sessions[name] = self._open.enter_context(main.fork(name, checkpoint="c"))
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def __getitem__(self, branch: str) -> AgentSession:
        return self.sessions[branch]

    def do(self, branch: str, name: str, **options: Any) -> Any:
        """The effect of this name, once; its result, own or recorded."""
        options.setdefault("kind", EffectClass.IRREVERSIBLE)
        with self[branch].attempt("tool", key=self.world.key(name), **options) as attempt:
            if attempt.owned:
                self.world.hit(name)
                attempt.commit({"by": branch})
        return attempt.result

    def do_sealed(self, branch: str, name: str) -> Any:
        """The same, with a sealed manifest: undoing takes the state from "after" to "before"."""
        undo = UndoPath(action=ACTION, pre_state_hash="before", payload={"name": name})
        attempt = self[branch].attempt("tool", key=self.world.key(name), kind=EffectClass.COMPENSATABLE, undo=undo)
        with attempt:
            if attempt.owned:
                self.world.hit(name)
                attempt.commit({"by": branch}, post_state_hash="after")
        return attempt.result

    def op_id(self, name: str) -> str:
        return self.world.op_id(name, "tool")

    def committed(self, name: str) -> None:
        """Until the projection shows that it is committed."""
        self.world.status(self.op_id(name), Status.COMMITTED)

    def prune(self, branch: str = "a", **word: str) -> PruneVerdict:
        return self.ledger.prune_branch(self.world.agent, branch, **word)

    def version(self, name: str) -> str:
        return self.ledger.operation(self.op_id(name)).operation.version

    def named(self, effects: tuple[BranchEffect, ...]) -> list[str]:
        """The names under which these effects were made."""
        return [effect.op_id.removeprefix("tool:").removesuffix(f"-{self.world.name}") for effect in effects]

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """What a coroutine gives on the ledger's own loop."""
        return self.ledger.submit(work).result(60)

    def undoable_by(self, ran: list[str]) -> None:
        """Register how these effects are undone; each undo notes itself in `ran`."""

        @self.ledger.compensator(ACTION, state_hash=lambda op: "before" if op.op_id in ran else "after")
        def undo(op: Any, payload: Any, idempotency_key: str) -> None:
            del payload, idempotency_key
            ran.append(op.op_id)

    def absorbed(self, branch: str, name: str) -> None:
        """Until it can be seen that a branch absorbed it."""
        session = self[branch]
        op_id = self.op_id(name)

        def seen() -> bool:
            places = self.run(self.ledger._engine.view.absorbed(self.world.agent)).get((op_id, 1), [])
            return any(place.epoch == session.epoch for place in places)

        until(seen)
