"""Administration of a ledger on Kafka and Redis: creating its topics, and checking every guarantee."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from ..ledger.client_log import client_logger
from ..ledger.errors import GuaranteeError, StoreUnavailableError
from ..ledger.ports import Check
from ..ledger.positions import Partition, Topic
from . import kafka_client, keys
from .guarantees import COMPARED, DAY_MS, LAG, REPLICAS, TopicFacts, identity_checks, setting_checks, wanted_settings
from .reader import open_projection
from .redis_client import connect_async, eviction_checks, is_cluster, translated, version_checks

if TYPE_CHECKING:
    import concurrent.futures
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from ..ledger.urls import StoreUrl
    from .redis_client import AsyncClient

REDIS_ANSWERS = "Redis answers"
"""The name of that check."""

PARTITIONS = 12
"""Of each topic, where nobody says another number."""
_TIMEOUT_S = 20.0
_RETRY_S = 0.2
_PROJECTOR_SILENT_MS = 10_000


class LogFacts(NamedTuple):
    """What a client must know of the log.

    Attributes:
        topic_ids: topic → id.
        partitions: topic → count.
        min_compaction_lag_ms: the smaller one of the two topics.
    """

    topic_ids: Mapping[Topic, str]
    partitions: Mapping[Topic, int]
    min_compaction_lag_ms: int


def open_admin(url: StoreUrl, *, known_topic_ids: Mapping[Topic, str] | None = None) -> Admin:
    """The administration of the ledger at `url`.

    Args:
        url: of the ledger.
        known_topic_ids: topic ids that are known from elsewhere, to compare with.
    """
    return Admin(url, known_topic_ids or {})


class Admin:
    """See `open_admin`. Every method raises StoreUnavailableError when Kafka does not answer."""

    def __init__(self, url: StoreUrl, known_topic_ids: Mapping[Topic, str]) -> None:
        self._url = url
        self._known_topic_ids = known_topic_ids
        self._admin = AdminClient(kafka_client.admin_settings(url), logger=client_logger())

    async def initialise(
        self, *, partitions: int | None, development: bool, min_compaction_lag_ms: int | None = None
    ) -> None:
        """Create the topics that are missing, and record which topics the ledger has.

        Args:
            partitions: of each topic; can never be changed. None: as many as there are, or 12.
            development: one copy is enough; said loudly by `check`.
            min_compaction_lag_ms: a day when None; less is for tests.
        """
        if partitions is None:
            there = [await self._topic(topic) for topic in Topic]
            partitions = next((facts.partitions for facts in there if facts is not None), PARTITIONS)
        lag = DAY_MS if min_compaction_lag_ms is None else min_compaction_lag_ms
        settings = wanted_settings(development=development, min_compaction_lag_ms=lag)
        copies = 1 if development else REPLICAS
        new = [NewTopic(self._url.topic(topic), partitions, copies, config=settings) for topic in Topic]
        for topic in new:
            await self._create(topic)
        facts = await self._settled_facts(partitions)
        await self.record(facts)

    async def check(self) -> Sequence[Check]:
        """Every guarantee, looked at now, and whether the projector does its work."""
        checks = list(await self.guarantees())
        if all(check.ok for check in checks if check.severity == "refuse"):
            checks += await self._projector_checks((await self.facts()).partitions)
        return checks

    async def guarantees(self) -> Sequence[Check]:
        """Every guarantee of the topics and of Redis, looked at now."""
        checks: list[Check] = []
        topics = {topic: await self._topic(topic) for topic in Topic}
        recorded, redis_checks = await self._redis_checks()
        for topic, facts in topics.items():
            if facts is None:
                checks.append(Check(f"{self._url.topic(topic)}: exists", ok=False, found="no", wanted="yes"))
                continue
            known = self._known_topic_ids.get(topic, "")
            checks += setting_checks(facts, development=self._url.development)
            checks += identity_checks(facts, recorded.get(topic, {}), known)
        return checks + redis_checks

    async def facts(self) -> LogFacts:
        """Ids and partition counts of the topics, and how long a record is safe from compaction."""
        found = {topic: await self._topic(topic) for topic in Topic}
        present = {topic: facts for topic, facts in found.items() if facts is not None}
        missing = [self._url.topic(topic) for topic in Topic if topic not in present]
        if missing:
            raise kafka_client.unavailable(self._url, f"it has no topic {', '.join(missing)}; create: fencepost init")
        return LogFacts(
            {topic: facts.topic_id for topic, facts in present.items()},
            {topic: facts.partitions for topic, facts in present.items()},
            min(int(facts.settings[LAG]) for facts in present.values()),
        )

    async def record(self, facts: LogFacts) -> None:
        """Note which topics this projection belongs to; what is noted already stays."""
        async with _redis(self._url) as client:
            for topic in Topic:
                for field, value in (("topic_id", facts.topic_ids[topic]), ("partitions", facts.partitions[topic])):
                    await client.hsetnx(keys.meta(self._url), f"{topic.value}.{field}", str(value))

    # -- Kafka ---------------------------------------------------------------------------

    async def _create(self, topic: NewTopic) -> None:
        try:
            await self._ask(lambda: self._admin.create_topics([topic])[topic.topic])
        except StoreUnavailableError as error:
            if not _is(error, KafkaError.TOPIC_ALREADY_EXISTS):
                raise

    async def _settled_facts(self, partitions: int) -> LogFacts:
        """The facts, once every broker that is asked knows the new topics."""
        async with asyncio.timeout(_TIMEOUT_S):
            while True:
                try:
                    facts = await self.facts()
                except StoreUnavailableError:
                    await asyncio.sleep(0.1)
                    continue
                break
        if any(count != partitions for count in facts.partitions.values()):
            have = ", ".join(f"{topic.value} has {count}" for topic, count in facts.partitions.items())
            counts = set(facts.partitions.values())
            named = f"Name that count with --partitions {min(counts)}, or choose" if len(counts) == 1 else "Choose"
            raise GuaranteeError(
                f"the topics exist with other partition counts than {partitions}: {have}.",
                next_step=f"{named} another prefix.",
                checks=[],
            )
        return facts

    async def _topic(self, topic: Topic) -> TopicFacts | None:
        name = self._url.topic(topic)
        try:
            described = await self._ask(lambda: self._admin.describe_topics(TopicCollection([name]))[name])
            resource = ConfigResource(ResourceType.TOPIC, name)
            config = await self._ask(lambda: self._admin.describe_configs([resource])[resource])
        except StoreUnavailableError as error:
            if _is(error, KafkaError.UNKNOWN_TOPIC_OR_PART):
                return None
            raise
        replicas = min(len(p.replicas) for p in described.partitions)
        settings = {option: config[option].value for option in COMPARED if option in config}
        return TopicFacts(name, str(described.topic_id), len(described.partitions), replicas, settings)

    async def _ask(self, ask: Callable[[], concurrent.futures.Future[Any]]) -> Any:
        """The answer; asked again, until the time is up, while what stands in the way may pass."""
        failed: KafkaException | None = None
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                while True:
                    try:
                        return await asyncio.wrap_future(ask())
                    except KafkaException as error:
                        if not kafka_client.passing(error.args[0]):
                            raise
                        failed = error
                    await asyncio.sleep(_RETRY_S)
        except (KafkaException, TimeoutError) as error:
            told = failed if failed is not None and isinstance(error, TimeoutError) else error
            raise kafka_client.unavailable(self._url, str(told)) from told
        finally:
            self._admin.poll(0)  # hands over what the client has to say of itself

    # -- Redis ---------------------------------------------------------------------------

    async def _redis_checks(self) -> tuple[dict[Topic, dict[str, str]], list[Check]]:
        try:
            async with _redis(self._url) as client:
                everywhere = {"target_nodes": "primaries"} if is_cluster(self._url.projection) else {}
                memory = await client.info("memory", **everywhere)
                server = await client.info("server", **everywhere)
                noted: Any = await client.hgetall(keys.meta(self._url))
        except StoreUnavailableError as error:
            return {}, [Check(REDIS_ANSWERS, ok=False, found=str(error), wanted="yes")]
        recorded: dict[Topic, dict[str, str]] = {topic: {} for topic in Topic}
        for field, value in noted.items():
            topic, _, name = field.decode().partition(".")
            recorded[Topic(topic)][name] = value.decode()
        answers = Check(REDIS_ANSWERS, ok=True, found="yes", wanted="yes")
        return recorded, [answers, *version_checks(server), *eviction_checks(memory)]

    async def _projector_checks(self, counts: Mapping[Topic, int]) -> list[Check]:
        projection = open_projection(self._url)
        try:
            partitions = [Partition(topic, number) for topic, count in counts.items() for number in range(count)]
            headers = {p: (await projection.read(p, ())).header for p in partitions}
        finally:
            await projection.close()
        silent = [str(p) for p, h in headers.items() if h.now_ms - h.seen_ms > _PROJECTOR_SILENT_MS]
        closed = [str(p) for p, h in headers.items() if not h.opened]
        halted = [f"{p}: {h.halted}" for p, h in headers.items() if h.halted]
        return [
            Check("projector", not silent, _listed("silent", silent), "seen in the last 10 s", "warn"),
            Check("projection", not closed, _listed("not open", closed), "open in all partitions", "warn"),
            Check("projection's progress", not halted, _listed("halted", halted), "going on in all partitions", "warn"),
        ]


def _listed(what: str, names: Sequence[str]) -> str:
    return f"{what}: {', '.join(names)}" if names else "all well"


def _is(error: StoreUnavailableError, code: int) -> bool:
    cause = error.__cause__
    return isinstance(cause, KafkaException) and cause.args[0].code() == code


@asynccontextmanager
async def _redis(url: StoreUrl) -> AsyncIterator[AsyncClient]:
    """A client for a few calls, with its errors translated."""
    client = connect_async(url.projection)
    try:
        with translated(url.projection):
            yield client
    finally:
        await client.aclose()
