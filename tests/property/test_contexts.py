"""Generations against a model that carries them forward: orderly lives, and disorder."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from unit.ledger.context_kit import STRUCTURE, compacted, context_of, marked
from unit.ledger.kit import agent_fact, at, decided, forked, opened, point, requested, token

from fencepost.ledger.contexts import Context
from fencepost.ledger.facts import AgentFact
from fencepost.ledger.lineage import Agent, fold_agent

KINDS = ["do", "do", "compact", "compact", "checkpoint", "checkpoint", "open", "fork", "rollback", "close", "late"]
steps = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 7), st.integers(1, 3)), max_size=30)


@dataclass
class Session:
    """A session of the model; `generations[n]` is its context's generation after its n-th fact."""

    name: str
    branch: str
    epoch: int
    generations: list[int]
    over: bool = False


@dataclass
class Life:
    """An agent's life, written fact by fact; every generation is carried forward, none is looked up."""

    facts: list[AgentFact] = field(default_factory=list)
    sessions: list[Session] = field(default_factory=list)
    checkpoints: dict[str, tuple[Session, int, int]] = field(default_factory=dict)
    late: set[str] = field(default_factory=set)

    def agent(self) -> Agent:
        return fold_agent("agent", at(*(f if f.kind.value in STRUCTURE else None for f in self.facts)))

    def heads(self) -> list[Session]:
        return [s for s in self.sessions if not s.over]

    def open(self, branch: str, origin: tuple[Session, int] | None) -> None:
        agent = self.agent()
        known = agent.branches.get(branch)
        if known is not None and known.forbidden:
            return
        parent, seq = origin or (None, 0)
        mark = token(parent.epoch, seq) if parent else ""
        for session in self.heads():
            session.over = session.over or session.branch == branch
        name = f"s{len(self.facts)}"
        carried = parent.generations[seq] if parent else 0
        self.sessions.append(Session(name, branch, len(self.facts), [carried]))
        self.facts.append(opened(name, mark, branch_id=branch, segment=known.segment if known else ""))

    def do(self, session: Session) -> int:
        session.generations.append(session.generations[-1])
        return len(session.generations) - 1

    def take(self, kind: str, which: int, amount: int) -> None:
        live = self.heads()
        if not live:
            self.open(f"b{len(self.facts)}", None)
            return
        session = live[which % len(live)]
        match kind:
            case "do" | "compact" | "open":
                getattr(self, f"on_{kind}")(session, amount)
            case "checkpoint":
                self.on_checkpoint(session)
            case "late":
                self.on_late(which, amount)
            case _:
                getattr(self, f"on_{kind}")(session, which)

    def on_do(self, session: Session, amount: int) -> None:
        for _ in range(amount):
            self.do(session)

    def on_compact(self, session: Session, amount: int) -> None:
        seq, generation = self.do(session), session.generations[-1] + amount
        session.generations[-1] = generation
        self.facts.append(compacted(session.name, generation, seq, branch_id=session.branch))

    def on_checkpoint(self, session: Session) -> None:
        seq, name = len(session.generations) - 1, f"c{len(self.facts)}"
        generation = session.generations[seq]
        self.do(session)
        self.facts.append(marked(name, session.name, session.epoch, seq, generation, branch_id=session.branch))
        self.checkpoints[name] = (session, seq, generation)

    def on_open(self, session: Session, amount: int) -> None:
        self.open(session.branch, (session, max(0, len(session.generations) - amount)))

    def on_close(self, session: Session, which: int) -> None:
        seq = self.do(session)
        self.facts.append(
            agent_fact("SESSION_CLOSED", session_id=session.name, sealed_seq=seq, branch_id=session.branch)
        )
        session.over = True
        if which % 2:
            self.open(session.branch, (session, seq))

    def on_fork(self, session: Session, which: int) -> None:
        mine = [c for c in self.checkpoints.values() if c[0] is session]
        if mine:
            branch, (origin, seq, _) = f"f{len(self.facts)}", mine[which % len(mine)]
            self.facts.append(forked(branch, token(origin.epoch, seq), parent_branch_id=session.branch))
            self.open(branch, (origin, seq))

    def on_rollback(self, session: Session, which: int) -> None:
        mine = [c for c in self.checkpoints.values() if c[0] is session]
        if mine:
            origin, seq, _ = mine[which % len(mine)]
            rollback, segment = f"r{len(self.facts)}", self.agent().branches[session.branch].segment
            self.facts.append(requested(rollback, token(origin.epoch, seq), segment, branch_id=session.branch))
            self.facts.append(decided(rollback, branch_id=session.branch))
            ended = {s.session_id for s in self.agent().sessions.values() if not s.live}
            for other in self.sessions:
                other.over = other.over or other.name in ended
            self.open(session.branch, (origin, seq))

    def on_late(self, which: int, amount: int) -> None:
        """Somebody whose session is over writes all the same."""
        over = [s for s in self.sessions if s.over]
        if over:
            zombie, name = over[which % len(over)], f"late{len(self.facts)}"
            seq = len(zombie.generations) + which
            self.facts.append(compacted(zombie.name, zombie.generations[-1] + amount, seq, branch_id=zombie.branch))
            self.facts.append(marked(name, zombie.name, zombie.epoch, seq, zombie.generations[-1]))


@given(steps)
def test_generations_of_orderly_lives(life_of: list[tuple[str, int, int]]) -> None:
    """At every point of a life the context is at the generation that was carried there, whatever lies beside its path."""
    life = Life()
    for step in life_of:
        life.take(*step)
    context = context_of(*life.facts)
    for session in life.sessions:
        for seq, generation in enumerate(session.generations):
            assert context.generation_at(point(session.epoch, seq)) == generation
    assert {name: c.generation for name, c in context.checkpoints.items()} == {
        name: generation for name, (_, _, generation) in life.checkpoints.items()
    }
    assert not any(c.conflicts for c in context.refused)


disorder = st.lists(
    st.one_of(
        st.builds(
            compacted, st.sampled_from(["s", "t", "f", "u"]), st.integers(0, 4), st.integers(1, 8),
        ),
        st.builds(
            lambda which, seq, generation, name: marked(name, "stfu"[which], (0, 5, 10, 12)[which], seq, generation),
            st.integers(0, 3), st.integers(0, 8), st.integers(0, 4), st.sampled_from([f"c{n}" for n in range(9)]),
        ),
    ),
    min_size=1, max_size=14,
)  # fmt: skip


@given(disorder, st.integers(0, 8), st.integers(0, 8))
def test_a_checkpoint_that_counts_has_its_generation_for_ever(said: list[Any], at_fork: int, at_end: int) -> None:
    """Facts in any order, with any numbers: what counts is of the generation where it stands, whatever comes later.

    Session t takes over from s, f forks from t, u takes over from f.
    """
    facts: list[AgentFact | None] = [None] * 13
    facts[0], facts[5] = opened("s"), opened("t", token(0, at_end))
    facts[8] = forked("b", token(5, at_fork))
    facts[10] = opened("f", token(5, at_fork), branch_id="b", segment="0.8")
    facts[12] = opened("u", token(10, 1), branch_id="b", segment="0.8")
    free = [n for n in range(13) if facts[n] is None]
    for place, fact in zip(free, said, strict=False):
        facts[place] = fact
    facts += said[len(free) :]
    lives: list[Context] = [context_of(*facts[:n]) for n in range(1, len(facts) + 1)]
    for context in lives:
        for checkpoint in context.checkpoints.values():
            assert checkpoint.mark is not None
            assert context.generation_at(checkpoint.mark.point) == checkpoint.generation
        for one, next_one in pairwise(context.compactions):
            if one.point.epoch == next_one.point.epoch:
                assert (one.point.seq, one.generation) < (next_one.point.seq, next_one.generation)
    for earlier, later in pairwise(lives):
        assert set(earlier.checkpoints) <= set(later.checkpoints)
        assert len(earlier.compactions) <= len(later.compactions)
