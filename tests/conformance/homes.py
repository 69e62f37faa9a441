"""A ledger on each store: made, served by a projector where it needs one, and robbed of its projection."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.waiting import until

from fencepost.deploy.processes import Process
from fencepost.ledger import Ledger, urls
from fencepost.ledger.history import Record, encode
from fencepost.ledger.positions import Partition, Topic
from fencepost.ledger.setup import initialise
from fencepost.ledger.stores import open_store

PARTITIONS = 4
RUN_PROJECTOR = (
    "import sys; from fencepost.consumer.command import run_projector; from fencepost.ledger import urls; "
    "run_projector(urls.parse(sys.argv[1]))"
)


@dataclass
class Home:
    """A ledger and, where the store needs one, its projector."""

    kind: str
    url: str
    directory: Path
    projector: Process | None = None

    @property
    def embedded(self) -> bool:
        return self.kind == "embedded"

    def set_up(self) -> Home:
        async def create() -> None:
            store = open_store(self.url)
            try:
                await initialise(store, partitions=PARTITIONS, development=True)
            finally:
                await store.close()

        asyncio.run(create())
        self.start_projector()
        Ledger.open(self.url).close()  # once it opens, everything answers
        return self

    def start_projector(self) -> None:
        if not self.embedded and self.projector is None:
            command = [sys.executable, "-c", RUN_PROJECTOR, self.url]
            self.projector = Process.spawn(command, log=self.directory / "projector.log", tied=True)

    def stop_projector(self) -> None:
        if self.projector is not None:
            self.projector.stop()
            self.projector = None

    def lose_projection(self) -> None:
        """Delete everything that the projection store holds of this ledger."""
        if self.embedded:
            self._lose_documents()
            return
        import redis  # noqa: PLC0415 (only where there is one)

        parsed = urls.parse(self.url)
        with redis.Redis.from_url(parsed.projection) as client:
            for key in client.scan_iter(match=f"*{parsed.prefix}*", count=1000):
                client.delete(key)

    def _lose_documents(self) -> None:
        import apsw  # noqa: PLC0415

        from fencepost.ledger import embedded_tables  # noqa: PLC0415

        sql = apsw.Connection(urls.parse(self.url).path)
        sql.set_busy_timeout(10_000)
        sql.execute("BEGIN IMMEDIATE")
        embedded_tables.begin_again(sql)
        sql.execute("COMMIT")
        sql.close()

    def poison(self, partition: Partition, key: bytes | None, value: bytes) -> int:
        """Put a record into the log past every check, as a broken or foreign writer would; its offset, once applied."""
        if self.embedded:
            offset = self._insert(partition, key or b"", value)
            self.rebuild()
        else:
            offset = self._produce(partition, key, value)
        until(lambda: asyncio.run(self._applied(partition)) > offset)
        return offset

    def tamper(self, collection: str, key: str, damage: str, partition: Partition | None = None) -> None:
        """Make a document missing, changed, or made up, with everything that counts it.

        Args:
            partition: where it is; by default where the operation `key` is.
        """
        if partition is None:
            store = open_store(self.url)
            partition = Partition(Topic.EFFECTS, store.log.partition_of(Topic.EFFECTS, key))
            asyncio.run(store.close())
        if self.embedded:
            self._tamper_file(partition, collection, key, damage)
        else:
            self._tamper_redis(partition, collection, key, damage)

    def _tamper_file(self, partition: Partition, collection: str, key: str, damage: str) -> None:
        import apsw  # noqa: PLC0415

        from fencepost.ledger.embedded_tables import document_checksum  # noqa: PLC0415

        place = (partition.topic.value, partition.number, collection, key)
        sql = apsw.Connection(urls.parse(self.url).path)
        sql.set_busy_timeout(10_000)
        if damage != "extra":
            where = "topic = ? AND partition = ? AND collection = ? AND key = ?"
            sql.execute(f"DELETE FROM documents WHERE {where}", place)  # noqa: S608
        if damage != "missing":
            value = encode(Record(key))
            sql.execute(
                "INSERT INTO documents VALUES (?, ?, ?, ?, ?, ?)", (*place, value, document_checksum(*place, value))
            )
        sql.close()

    def _tamper_redis(self, partition: Partition, collection: str, key: str, damage: str) -> None:
        import redis  # noqa: PLC0415

        from fencepost.consumer.keys import partition_keys  # noqa: PLC0415

        parsed = urls.parse(self.url)
        keys = partition_keys(parsed, partition)
        with redis.Redis.from_url(parsed.projection) as client:
            if damage == "missing":
                assert client.hdel(keys.collection(collection), key) == 1
            else:
                client.hset(keys.collection(collection), key, encode(Record(key)))
            client.hincrby(keys.counts, collection, {"missing": -1, "extra": 1, "changed": 0}[damage])

    async def _applied(self, partition: Partition) -> int:
        store = open_store(self.url)
        try:
            return (await store.projection.read(partition, [])).header.applied_offset
        finally:
            await store.close()

    def _insert(self, partition: Partition, key: bytes, value: bytes) -> int:
        import apsw  # noqa: PLC0415

        from fencepost.ledger import embedded_tables as tables  # noqa: PLC0415

        sql = apsw.Connection(urls.parse(self.url).path)
        sql.set_busy_timeout(10_000)
        sql.execute("BEGIN IMMEDIATE")
        offset, now = tables.log_bounds(sql, partition)[1], tables.now_ms()
        place = (partition.topic.value, partition.number, offset, now)
        text = key.decode() if key.decode(errors="ignore").encode() == key else ""
        row = (*place, key, value, tables.row_checksum(*place, text, value))
        sql.execute("INSERT INTO log VALUES (?, ?, ?, ?, CAST(? AS TEXT), ?, ?)", row)
        sql.execute("COMMIT")
        sql.close()
        return offset

    def _produce(self, partition: Partition, key: bytes | None, value: bytes) -> int:
        from confluent_kafka import Producer  # noqa: PLC0415

        parsed = urls.parse(self.url)
        reports: list[tuple[Any, Any]] = []
        producer = Producer({"bootstrap.servers": parsed.bootstrap})
        topic = parsed.topic(partition.topic)
        producer.produce(
            topic, value, key, partition.number, on_delivery=lambda error, message: reports.append((error, message))
        )
        assert producer.flush(30) == 0
        [(error, message)] = reports
        assert error is None
        return int(message.offset())

    def rebuild(self) -> None:
        """Bring a lost projection back; a projector does it by itself."""
        if self.embedded:
            from fencepost.ledger.embedded import open_store as open_embedded  # noqa: PLC0415

            async def run() -> None:
                store = open_embedded(urls.parse(self.url))
                try:
                    await store.rebuild()
                finally:
                    await store.close()

            asyncio.run(run())
        else:
            self.start_projector()


def new_home(kind: str, directory: Path, kafka: tuple[str, str] | None = None) -> Home:
    """A ledger that was just created; `kafka` has the addresses of Kafka and Redis."""
    if kafka is None:
        return Home(kind, f"sqlite://{directory / 'state' / 'ledger.db'}", directory).set_up()
    bootstrap, redis_url = kafka
    prefix = f"c{os.getpid()}-{secrets.token_hex(4)}"
    return Home(kind, f"kafka://{bootstrap}/{prefix}?projection={redis_url}&development=1", directory).set_up()
