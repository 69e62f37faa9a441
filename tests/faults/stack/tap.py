"""Archives every record of a ledger's log as it comes, so that what compaction removes later is known.

python tap.py URL PARTITIONS FILE
"""

from __future__ import annotations

import os
import sys

from confluent_kafka import Consumer, KafkaError, TopicPartition
from faults.stack.evidence import Raw, raw_line

from fencepost.consumer.kafka_client import as_bytes, names, reader_settings
from fencepost.ledger import urls
from fencepost.ledger.positions import Partition, Topic


def main() -> None:
    """Read until killed."""
    url, partitions = urls.parse(sys.argv[1]), int(sys.argv[2])
    out = os.open(sys.argv[3], os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    consumer = Consumer({**reader_settings(url, f"{url.prefix}.tap"), "socket.timeout.ms": 5_000})
    topics = names(url)
    consumer.assign([TopicPartition(url.topic(t), n, 0) for t in Topic for n in range(partitions)])
    while True:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if (error := message.error()) is not None:
            if error.code() == KafkaError._AUTO_OFFSET_RESET:
                sys.exit(f"the tap is not at the log's front any more: {error}")
            continue  # a broker that is away comes back
        partition = Partition(topics[message.topic() or ""], message.partition() or 0)
        key, value = as_bytes(message.key()), as_bytes(message.value())
        os.write(out, raw_line(partition, Raw(message.offset() or 0, message.timestamp()[1], key, value)))


if __name__ == "__main__":
    main()
