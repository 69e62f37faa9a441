"""What a tool says by raising: that its effect certainly did not happen, and why."""

from __future__ import annotations


class EffectNotExecuted(Exception):  # noqa: N818 (says what is so, not that something is wrong)
    """Raised by a tool to say that its effect certainly did not happen."""


class StateMoved(EffectNotExecuted):
    """Raised by a compensator: the state is not the expected one, so it has changed nothing."""


class KeyVoided(EffectNotExecuted):
    """Raised by a tool: the provider refuses its idempotency key as void, so nothing happened under it, and nothing will.

    A probe voids a key before it is recorded that it did, and may die in between. The next attempt of the round gets
    another key. Never raise it for a key that was used: what happened under that is the effect.
    """


def says_key_voided(error: BaseException) -> bool:
    """Whether an exception says that the key is void; no class but its own ancestors has a say. Never raises."""
    return KeyVoided in type(error).__mro__
