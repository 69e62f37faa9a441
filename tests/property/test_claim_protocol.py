"""The claim protocol on the real fold, driven at random: nothing is doubled, forgotten, or decided over."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from property import claim_world as claims
from property.claim_projector import Projector, fold_log
from property.claim_world import Session, Switches, World, violation

from fencepost.ledger.facts import EffectKind
from fencepost.ledger.history import Record

SESSIONS = (Session("A", "A", 0), Session("S", "A", 1), Session("B", "B", 0), Session("C", "C", 0))
MAX_ATTEMPTS = 3
MAX_LOG = 40
who = st.integers(0, len(SESSIONS) - 1)


class ClaimProtocol(RuleBasedStateMachine):
    """Sessions claim one operation through the log; a guard fences; everything that may break does."""

    def __init__(self) -> None:
        super().__init__()
        self.projector = Projector(Switches(), essential=False)
        self.world = World(SESSIONS)
        self.tap: list[Record] = []

    def go(self, after: World | None) -> None:
        """Take a step if it is possible now; a tap keeps what the cleaner will remove."""
        if after is None:
            return
        for record in after.log[len(self.world.log) :]:
            assert record is not None
            self.tap.append(record)
        self.world = after

    # -- sessions ----------------------------------------------------------------------

    @rule(index=who)
    def read(self, index: int) -> None:
        self.go(claims.read(self.world, index))

    @rule(index=who)
    def intend(self, index: int) -> None:
        self.go(claims.intend(self.world, index))

    @rule(index=who)
    def confirm(self, index: int) -> None:
        self.go(claims.confirm(self.world, index))

    @rule(index=who)
    def execute(self, index: int) -> None:
        self.go(claims.execute(self.world, index))

    @rule(index=who)
    def withdraw(self, index: int) -> None:
        self.go(claims.withdraw(self.world, index))

    @rule(index=who)
    def commit(self, index: int) -> None:
        self.go(claims.commit(self.world, index))

    @rule(index=who)
    def run_through(self, index: int) -> None:
        """A whole attempt, so that deep states are reached: the projector keeps up in between."""
        for step in (claims.read, claims.intend, claims.confirm, claims.execute, claims.commit):
            self.go(step(self.world, index))
            self.catch_up()

    @rule(index=who)
    def try_again(self, index: int) -> None:
        if self.world.sessions[index].attempt < MAX_ATTEMPTS:
            self.go(claims.again(self.world, index))

    @rule(index=who)
    @precondition(lambda self: len(self.world.log) < MAX_LOG)
    def resend(self, index: int) -> None:
        self.go(claims.resend(self.world, index))

    @rule()
    @precondition(lambda self: len(self.world.log) < MAX_LOG)
    def compensate(self) -> None:
        self.go(claims.compensate(self.world))

    # -- guard -------------------------------------------------------------------------

    @rule()
    def fence(self) -> None:
        self.go(claims.fence(self.world))

    @rule(epoch=st.integers(1, 2))
    @precondition(lambda self: len(self.world.log) < MAX_LOG)
    def resend_fence(self, epoch: int) -> None:
        """A fence that was written once, again, by somebody who has read nothing."""
        if epoch < self.world.guard[1] or self.world.guard[0] != "fence":
            blind = Record(claims.FENCE, (), claims.fact(EffectKind.FENCED, None, epoch=epoch))
            self.go(self.world.append(blind))

    @rule()
    def decide(self) -> None:
        self.go(claims.decide(self.world, self.projector.switches))

    # -- projector ---------------------------------------------------------------------

    @rule(count=st.integers(1, 4))
    def project(self, count: int) -> None:
        for _ in range(count):
            self.go(self.projector.open(self.world) or self.projector.apply(self.world))

    @rule()
    def catch_up(self) -> None:
        while (after := self.projector.open(self.world) or self.projector.apply(self.world)) is not None:
            self.go(after)

    @rule(data=st.data())
    @precondition(lambda self: self.world.debts)
    def pay(self, data: st.DataObject) -> None:
        self.go(self.projector.reassert(self.world, data.draw(st.sampled_from(sorted(self.world.debts)))))

    @rule(data=st.data())
    @precondition(lambda self: self.world.debts and len(self.world.zombies) < 3)
    def leave_zombie(self, data: st.DataObject) -> None:
        self.go(self.projector.leave_zombie(self.world, data.draw(st.sampled_from(sorted(self.world.debts)))))

    @rule(data=st.data())
    @precondition(lambda self: self.world.zombies)
    def zombie_lands(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.world.zombies) - 1))
        self.go(self.projector.zombie_lands(self.world, index))

    @rule()
    def settle(self) -> None:
        self.go(self.projector.settle(self.world))

    @rule()
    def crash(self) -> None:
        self.go(self.projector.crash(self.world))

    @rule()
    @precondition(lambda self: self.world.losses < 4)
    def lose_store(self) -> None:
        self.go(self.projector.lose_store(self.world))

    @rule(data=st.data())
    @precondition(lambda self: self.projector.removable(self.world))
    def clean(self, data: st.DataObject) -> None:
        """The cleaner may do all that it is allowed to, or a part."""
        removable = sorted(self.projector.removable(self.world))
        some = data.draw(st.sets(st.sampled_from(removable), min_size=1))
        self.go(self.projector.clean(self.world, frozenset(some)))

    # -- what must hold ----------------------------------------------------------------

    @invariant()
    def nothing_is_wrong(self) -> None:
        assert not violation(self.world), violation(self.world)

    @invariant()
    def the_settled_offset_never_passes_a_debt(self) -> None:
        oldest = min((debt.offset for debt in self.world.debts.values()), default=self.world.header.applied_offset)
        assert not self.world.header.opened or self.world.header.settled_offset <= oldest

    def teardown(self) -> None:
        """At rest: projection == fold(log) == fold(the uncleaned log), also after one more rebuild."""
        self.world = self.projector.to_rest(self.world)
        self.nothing_is_wrong()
        documents = self.world.documents
        assert documents == fold_log(self.world.log)
        lost = self.projector.lose_store(self.world)
        assert lost is not None
        assert self.projector.to_rest(lost).documents == documents
        assert fold_log(tuple(self.tap)) == documents


TestClaimProtocol = ClaimProtocol.TestCase
TestClaimProtocol.settings = settings(
    max_examples=250, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
