"""An idempotency key that is void at the provider, and nobody has told the ledger: the operation still runs, once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.ledger import AsyncAgentSession, EffectClass, KeyVoided, Ledger
from fencepost.ledger.operations import Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from conformance.worlds import World

    from fencepost.ledger import AgentSession

SEND: dict[str, Any] = {"tool": "mail.send", "kind": EffectClass.IRREVERSIBLE}


class Provider:
    """Takes each key once, and none that was voided."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.void: set[str] = set()

    def send(self, key: str) -> str:
        if key in self.void:
            raise KeyVoided(key)
        if key not in self.sent:
            self.sent.append(key)
        return key


def left_in_doubt(world: World, session: AgentSession, provider: Provider) -> str:
    """Nothing happened; a probe voided the key and died, and an operator took the risk. The op_id."""
    attempt = session.attempt(key=world.key("k"), **SEND).begin()
    assert attempt.owned
    attempt.doubt("no answer")
    provider.void.add(attempt.idempotency_key)
    operation = world.status(attempt.op_id, Status.IN_DOUBT)
    world.ledger.resolve(
        attempt.op_id,
        outcome="absent",
        version=operation.version,
        by="ann",
        evidence="it is not there",
        accept_risk=True,
    )
    return attempt.op_id


def by_hand(world: World, session: AgentSession, provider: Provider) -> Any:
    attempt = session.attempt(key=world.key("k"), **SEND).begin()
    assert attempt.owned
    try:
        result = provider.send(attempt.idempotency_key)
    except KeyVoided as refused:
        attempt.fail("refused", key_voided=True)
        raise KeyVoided from refused
    attempt.commit(result)
    return result


def in_a_block(world: World, session: AgentSession, provider: Provider) -> Any:
    with session.attempt(key=world.key("k"), **SEND) as attempt:
        assert attempt.owned
        attempt.commit(provider.send(attempt.idempotency_key))
    return attempt.result


def decorated(world: World, session: AgentSession, provider: Provider) -> Any:
    @session.effect("mail.send", kind=EffectClass.IRREVERSIBLE, key=lambda order: order, identity=())
    def send(order: str) -> str:
        del order
        return provider.send(session.current.idempotency_key)

    return send(world.key("k"))


def awaited(world: World, session: AgentSession, provider: Provider) -> Any:
    async def run() -> Any:
        async with world.ledger.session(session.agent_id, "main") as own:
            assert isinstance(own, AsyncAgentSession)
            attempt = await own.attempt(key=world.key("k"), **SEND).begin()
            assert attempt.owned
            try:
                result = provider.send(attempt.idempotency_key)
            except KeyVoided as refused:
                await attempt.fail("refused", key_voided=True)
                raise KeyVoided from refused
            await attempt.commit(result)
            return result

    return asyncio.run(run())


@pytest.mark.parametrize("send", [by_hand, in_a_block, decorated, awaited])
def test_the_attempt_after_a_refused_one_gets_another_key(
    world: World, ledger: Ledger, send: Callable[[World, AgentSession, Provider], Any]
) -> None:
    """The one that is refused says so and did nothing; the next one runs, and the op returns its result from then on."""
    provider = Provider()
    with ledger.session(world.agent) as session:
        op_id = left_in_doubt(world, session, provider)
        with pytest.raises(KeyVoided):
            send(world, session, provider)
        operation = world.status(op_id, Status.FREE)
        assert operation.idempotency_key not in provider.void
        result = send(world, session, provider)
    assert provider.sent == [result] == [operation.idempotency_key]
    assert world.status(op_id, Status.COMMITTED).round == 1


def test_a_refused_key_is_kept_where_nobody_says_that_it_is_void(world: World, ledger: Ledger) -> None:
    """A plain failure moves no key: a late call and the next attempt must be one to the provider."""
    with ledger.session(world.agent) as session:
        first = session.attempt(key=world.key("k"), **SEND).begin()
        key = first.idempotency_key
        first.fail("declined")
        assert world.status(first.op_id, Status.FREE).idempotency_key == key
        again = session.attempt(key=world.key("k"), **SEND).begin()
        assert (again.owned, again.idempotency_key) == (True, key)
        again.commit(1)
