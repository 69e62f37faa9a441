"""What the client says becomes an error of Fencepost, by what is certain about the record."""

from __future__ import annotations

import asyncio
import pickle

import pytest
from confluent_kafka import KafkaError, KafkaException
from unit.producer.mock_kafka import PRODUCE, MockKafka, OpenLog, publish

from fencepost.ledger.errors import FencepostError, OutcomeUnknownError, PublishRefusedError, RecordTooLargeError
from fencepost.ledger.positions import Partition, Topic
from fencepost.producer import errors
from fencepost.producer.errors import Failure
from fencepost.producer.settings import FIRST_RETRY_AFTER_S, Settings

PARTITION = Partition(Topic.EFFECTS, 3)
NAMES = sorted(name for name in dir(KafkaError) if name.isupper() and isinstance(getattr(KafkaError, name), int))


def test_every_error_of_the_client_becomes_one_of_two_kinds() -> None:
    """A record that the client had taken is either certainly not written, or its outcome is unknown."""
    assert len(NAMES) > 150
    for name in NAMES:
        error = errors.of_publish(Failure(name, "", handed_over=True, elapsed_s=60.0), PARTITION, 100)
        certain = {
            "MSG_SIZE_TOO_LARGE",
            "RECORD_LIST_TOO_LARGE",
            "INVALID_RECORD",
            "INVALID_TIMESTAMP",
            "INVALID_MSG_SIZE",
        }
        assert isinstance(error, OutcomeUnknownError) == (name not in certain), name
        assert str(error).endswith(".")
        assert type(pickle.loads(pickle.dumps(error))) is type(error)  # noqa: S301


def test_what_the_client_never_took_is_certainly_not_written() -> None:
    """Whatever the client's reason, a record that was not handed over is refused and not in doubt."""
    for name in NAMES:
        error = errors.of_publish(Failure(name, "", handed_over=False), PARTITION, 100)
        assert isinstance(error, (PublishRefusedError, RecordTooLargeError)), name


def test_a_refusal_of_the_moment_is_certain_only_before_a_retry() -> None:
    """No rights now, but an earlier try may have been written: certain only when there was no time for an earlier try."""
    for elapsed_s, kind in ((FIRST_RETRY_AFTER_S / 2, PublishRefusedError), (FIRST_RETRY_AFTER_S, OutcomeUnknownError)):
        failure = Failure("TOPIC_AUTHORIZATION_FAILED", "", handed_over=True, elapsed_s=elapsed_s)
        assert type(errors.of_publish(failure, PARTITION, 100)) is kind


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, RecordTooLargeError),
        (KafkaError.INVALID_RECORD, PublishRefusedError),
        (KafkaError.INVALID_TIMESTAMP, PublishRefusedError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, PublishRefusedError),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, PublishRefusedError),
        (KafkaError.POLICY_VIOLATION, PublishRefusedError),
        (KafkaError.INVALID_PRODUCER_EPOCH, OutcomeUnknownError),
        (KafkaError.UNKNOWN, OutcomeUnknownError),
    ],
)
def test_what_a_broker_answers(
    mock: MockKafka, opened: OpenLog, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[FencepostError]
) -> None:
    """The broker's refusals arrive as the errors that the port names, with the client's own as the cause."""
    monkeypatch.setattr(errors, "FIRST_RETRY_AFTER_S", 60.0)  # a busy machine may be late with the first answer
    log = opened()
    asyncio.run(publish(log))
    mock.answer_with(PRODUCE, code)
    with pytest.raises(kind) as caught:
        asyncio.run(publish(log))
    assert isinstance(caught.value.__cause__, KafkaException)


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.UNKNOWN_PRODUCER_ID,
    ],
)
def test_what_passes_is_tried_again(mock: MockKafka, opened: OpenLog, code: int) -> None:
    """An error of the moment is not seen by the caller when a second try gets through."""
    log = opened()
    asyncio.run(publish(log))
    mock.answer_with(PRODUCE, code)
    assert asyncio.run(publish(log)) == 1


def test_a_lasting_want_of_replicas_ends_in_an_unknown_outcome(mock: MockKafka, opened: OpenLog) -> None:
    """The client tries until the time is up and then says only that; whether a try was written is not known."""
    log = opened(Settings(message_timeout_s=1.0, close_timeout_s=1.0))
    asyncio.run(publish(log))
    mock.answer_with(PRODUCE, *[KafkaError.NOT_ENOUGH_REPLICAS] * 50)
    with pytest.raises(OutcomeUnknownError) as caught:
        asyncio.run(publish(log))
    assert caught.value.code == "_MSG_TIMED_OUT"


def test_a_success_may_have_no_offset(mock: MockKafka, opened: OpenLog) -> None:
    """When the answer to the first try was lost, the broker says "duplicate" to the second: written, offset unknown."""
    log = opened()
    asyncio.run(publish(log))
    mock.answer_with(PRODUCE, KafkaError.DUPLICATE_SEQUENCE_NUMBER)
    assert asyncio.run(publish(log)) is None


def test_a_late_refusal_leaves_the_outcome_unknown(mock: MockKafka, opened: OpenLog) -> None:
    """A refusal that comes so late that it could answer a second try is not taken as certain."""
    log = opened()
    asyncio.run(publish(log))
    mock.delay(200)
    mock.answer_with(PRODUCE, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(OutcomeUnknownError):
        asyncio.run(publish(log))
