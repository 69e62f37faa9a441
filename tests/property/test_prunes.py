"""What a pruned branch committed is never lost, whatever else happens; and forks mean the same after any compaction."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st
from unit.ledger.kit import AGENTS, MemoryPartition, agent_fact, decided, effect, forked, opened, requested, token
from unit.ledger.prune_kit import pruned, sealed

from fencepost.ledger import history, log_keys
from fencepost.ledger.facts import AgentFact, EffectFact, encode_agent, encode_effect
from fencepost.ledger.guard import SeenOperation
from fencepost.ledger.history import PositionedFact
from fencepost.ledger.lineage import Agent, fold_agent
from fencepost.ledger.operation_fold import fold_operation
from fencepost.ledger.operations import Operation, Status
from fencepost.ledger.positions import Position
from fencepost.ledger.prune_verdicts import PruneKind, PruneVerdict
from fencepost.ledger.prunes import PruneEvidence, by_branch, examine
from fencepost.ledger.reliance import standing_paths
from fencepost.ledger.watermarks import Point

BRANCHES = ("a", "b", "c")
OPS = ("pay:1", "pay:2")
STEPS = ("intend", "commit", "commit", "fail", "doubt", "adopt", "adopt", "absorb", "operator", "undo", "undone",
         "withdraw", "absent", "prune", "prune", "resolve")  # fmt: skip
steps = st.tuples(st.sampled_from(STEPS), st.sampled_from(BRANCHES), st.sampled_from(OPS))


@dataclass
class Crew:
    """Three siblings that work on two operations, one sealed and one not; both logs as they grow."""

    agent_facts: list[PositionedFact] = field(default_factory=list)
    effect_facts: dict[str, list[PositionedFact]] = field(default_factory=lambda: {op: [] for op in OPS})
    absorbed: dict[tuple[str, int], list[Point]] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=lambda: dict.fromkeys(BRANCHES, 0))
    epochs: dict[str, Position] = field(default_factory=dict)
    did: list[tuple[str, str, int]] = field(default_factory=list)
    """(branch, op_id, round) of every commit."""

    def __post_init__(self) -> None:
        self.agents(opened("s1"))
        for name in BRANCHES:
            fork = self.agents(forked(name, token(0, 2), checkpoint_id="c"))
            session = opened(f"s-{name}", token(0, 2, branch=name), branch_id=name, segment=str(fork))
            self.epochs[name] = self.agents(session)

    def agents(self, fact: AgentFact) -> Position:
        position = Position(0, len(self.agent_facts))
        self.agent_facts.append(PositionedFact(position, encode_agent(fact)))
        return position

    def tell(self, op_id: str, fact: EffectFact) -> None:
        log = self.effect_facts[op_id]
        log.append(PositionedFact(Position(0, len(log)), encode_effect(fact)))

    def operation(self, op_id: str) -> Operation:
        return fold_operation(op_id, history.merge(self.effect_facts[op_id]))

    @property
    def agent(self) -> Agent:
        return fold_agent("agent", self.agent_facts)

    def mine(self, kind: str, branch: str, op_id: str, **values: Any) -> EffectFact:
        """A fact of the branch's newest attempt at an operation."""
        self.numbers[branch] += 1
        op = self.operation(op_id)
        attempts = [a for a in op.attempts.values() if a.intent.branch_id == branch]
        name = attempts[-1].attempt_id if attempts and kind != "INTENDED" else f"{branch}{self.numbers[branch]}"
        place = {"epoch": self.epochs[branch], "seq": self.numbers[branch], "round": op.round}
        return effect(kind, name, op_id=op_id, branch_id=branch, **{**place, **values})

    def take(self, what: str, branch: str, op_id: str) -> None:
        op = self.operation(op_id)
        if what == "prune":
            self.agents(pruned(branch, f"p-{branch}"))
        elif what == "intend":
            self.tell(op_id, self.mine("INTENDED", branch, op_id))
        elif what in {"fail", "doubt"}:
            self.tell(op_id, self.mine("FAILED" if what == "fail" else "IN_DOUBT", branch, op_id))
        elif what == "commit":
            self._commit(branch, op_id, op)
        elif what == "adopt":
            self.tell(op_id, replace(self.mine("ADOPTED", branch, op_id), attempt_id=f"adopt-{branch}"))
        elif what == "absorb" and op.status is Status.COMMITTED:
            self.numbers[branch] += 1
            point = Point(self.epochs[branch], self.numbers[branch])
            self.absorbed.setdefault((op_id, op.round), []).append(point)
        else:
            self._operator(what, op_id, op)

    def _commit(self, branch: str, op_id: str, op: Operation) -> None:
        attempts = [a for a in op.attempts.values() if a.intent.branch_id == branch]
        if not attempts:
            return
        manifest = sealed(op_id) if op_id == OPS[0] and attempts[-1].intent.round == 1 else {}
        self.tell(op_id, self.mine("COMMITTED", branch, op_id, round=attempts[-1].intent.round, **manifest))
        self.did.append((branch, op_id, attempts[-1].intent.round))

    def _operator(self, what: str, op_id: str, op: Operation) -> None:
        plain: dict[str, Any] = {
            "op_id": op_id,
            "agent_id": "",
            "branch_id": "",
            "round": op.round,
            "version": op.version,
        }
        undo = op.undoing.attempt_id if op.undoing else "none"
        fact = {
            "operator": lambda: effect("ADOPTED", "o", **{**plain, "agent_id": "agent", "branch_id": "a"}, by="ann"),
            "undo": lambda: effect("COMPENSATING", f"u{len(self.effect_facts[op_id])}", **plain),
            "undone": lambda: effect("COMPENSATED", undo, **plain),
            "withdraw": lambda: effect("COMPENSATION_WITHDRAWN", undo, **plain),
            "absent": lambda: effect("RESOLVED", "r", outcome="ABSENT", **plain),
            "resolve": lambda: effect("RESOLVED", "r", outcome="COMMITTED", **plain),
        }.get(what)
        if fact is not None:
            self.tell(op_id, fact())

    def verdict(self, branch: str) -> PruneVerdict:
        agent = self.agent
        seen = [SeenOperation(self.operation(op_id), owner_ended=True) for op_id in OPS if self.effect_facts[op_id]]
        relevant = by_branch("agent", seen, BRANCHES)[branch]
        found = PruneEvidence("ledger-1", agent, agent.branches[branch], standing_paths(agent), relevant, self.absorbed)
        return examine(found)

    def relied_on(self, op_id: str, branch: str) -> bool:
        """Whether somebody other than the branch relies on the effect that stands, counted plainly."""
        alive = {name for name in BRANCHES if self.agent.branches[name].pruned is None} - {branch}
        op = self.operation(op_id)
        adopters = {a.fact.branch_id for a in op.adoptions if not a.fact.by}
        absorbers = {self.agent.branch_of(p) for p in self.absorbed.get((op_id, op.round), [])}
        return bool((adopters | absorbers) & alive) or any(a.fact.by for a in op.adoptions)


@settings(max_examples=400)
@given(st.lists(steps, min_size=3, max_size=30))
def test_what_a_pruned_branch_committed_is_never_lost(life: list[tuple[str, str, str]]) -> None:
    """Each of its effects is adopted, undone, or an open obligation; and only a branch with none open is cleared."""
    crew = Crew()
    for step in life:
        crew.take(*step)
    for branch in BRANCHES:
        if crew.agent.branches[branch].pruned is None:
            continue
        verdict = crew.verdict(branch)
        event(verdict.kind.value)
        named = {
            fate: {e.op_id for e in getattr(verdict, fate)}
            for fate in ("adopted", "compensated", "undoable", "orphans", "undecided")
        }
        for _, op_id, round_number in (did for did in crew.did if did[0] == branch):
            _accounted(crew, branch, op_id, round_number, named)
        _consistent(crew, branch, verdict, named)


def _accounted(crew: Crew, branch: str, op_id: str, round_number: int, named: dict[str, set[str]]) -> None:
    op = crew.operation(op_id)
    acknowledged = any(a.position <= op.last_resolution for a in op.anomalies if a.attempt_id.startswith(branch))
    undone = round_number < op.round
    kept = [fate for fate, names in named.items() if op_id in names]
    if undone:
        owned = any(
            a.owned and a.intent.branch_id == branch and a.intent.round == round_number for a in op.attempts.values()
        )
        assert kept or acknowledged or not owned, (branch, op)
    else:
        assert kept or acknowledged, (branch, op)


def _consistent(crew: Crew, branch: str, verdict: PruneVerdict, named: dict[str, set[str]]) -> None:
    for op_id in named["adopted"]:
        assert crew.relied_on(op_id, branch)
    for op_id in named["undoable"] | named["orphans"]:
        assert not crew.relied_on(op_id, branch)
    open_ = named["undoable"] | named["orphans"] | named["undecided"]
    assert (verdict.kind is PruneKind.CLEARED) is (not open_)
    assert (verdict.kind is PruneKind.VIOLATION) is bool(named["orphans"])
    planned = {step.op_id for step in verdict.to_compensate.steps} if verdict.to_compensate else set()
    assert planned == named["undoable"]
    assert {o.op_id for o in verdict.obligations} == open_


# -- compaction of the branch's key ---------------------------------------------------------

branch_steps = st.sampled_from(
    ["fork early", "fork late", "fork again", "prune", "decided", "request", "rolled back", "refused", "open"]
)


@settings(max_examples=200)
@given(st.lists(st.tuples(branch_steps, st.booleans()), max_size=14), st.booleans())
def test_a_branch_means_the_same_after_its_key_was_compacted(life: list[tuple[str, bool]], lose: bool) -> None:
    """Forks that are refused and begun later, prunes, their decisions; whether the writers knew the key's history or not.

    After the log was cleaned, and also after the projection was lost.
    """
    log = MemoryPartition(AGENTS)
    log.append(log_keys.session("agent", "s1"), opened("s1"))
    rollbacks = 0
    for number, (what, knows) in enumerate(life):
        log.project()
        rollbacks += what == "request"
        key, fact = _branch_fact(what, number, rollbacks, log)
        log.append(key, fact, log.history(key) if knows else ())
    log.pay()
    before = _agent(log)
    log.clean()
    if lose:
        log.lose()
    log.pay()
    assert _agent(log) == before


def _branch_fact(what: str, number: int, rollbacks: int, log: MemoryPartition) -> tuple[str, AgentFact]:
    name, rollback = log_keys.branch("agent", "b"), log_keys.rollback("agent", f"r{rollbacks}")
    agent = _agent(log)
    segment = agent.branches["main"].segment
    made = {
        "fork early": lambda: (name, forked("b", token(0, 2), time_ms=number)),
        "fork late": lambda: (name, forked("b", token(0, 9), time_ms=number)),
        "fork again": lambda: (name, forked("b", token(0, 9), time_ms=0)),
        "prune": lambda: (name, pruned("b", f"p{number}")),
        "decided": lambda: (
            name,
            agent_fact("PRUNE_DECIDED", branch_id="b", rollback_id=_prune(agent), verdict="OPEN"),
        ),
        "request": lambda: (rollback, requested(f"r{rollbacks}", token(0, 3), segment)),
        "rolled back": lambda: (rollback, decided(f"r{rollbacks}")),
        "refused": lambda: (rollback, decided(f"r{rollbacks}", "REFUSE")),
        "open": lambda: (
            log_keys.session("agent", f"b{number}"),
            opened(f"b{number}", branch_id="b", segment=_segment(agent)),
        ),
    }
    return made[what]()


def _prune(agent: Agent) -> str:
    branch = agent.branches.get("b")
    return branch.pruned.prune_id if branch is not None and branch.pruned else "none"


def _segment(agent: Agent) -> str:
    branch = agent.branches.get("b")
    return branch.segment if branch is not None else "0.77"


def _agent(log: MemoryPartition) -> Agent:
    facts = [
        fact
        for key, data in log.documents.items()
        if key.collection == "agent/agent"
        for fact in history.decode(data).history
    ]
    return fold_agent("agent", facts)
