"""Store URLs.

    sqlite:///absolute/path/ledger.db        (percent-quoted where the path needs it)
    kafka://host:9092[,host:9092…]/PREFIX?projection=redis://host:6379/0[&registry=URL][&client=FILE]
        [&development=1][&generation=1]

FILE holds how Kafka clients authenticate (`client_properties.py`). `${NAME}` in it, and in the projection's
URL, is taken from the environment when a client connects.

PREFIX names the ledger's two topics, `PREFIX.effects` and `PREFIX.agents`; from generation 1 on, when a
ledger has moved, `PREFIX.effects.g1` and so on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from .errors import InvalidArgumentError
from .positions import Topic

_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,150}")


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A parsed store URL.

    Attributes:
        text: as the user gave it.
        scheme: "sqlite" or "kafka".
        path: the file (sqlite).
        bootstrap: the brokers, comma separated (kafka).
        prefix: of the topics and of the projection's keys (kafka).
        projection: the projection store's URL (kafka).
        registry: a schema registry's URL, or "".
        development: whether weaker broker settings are openly accepted.
        client: a file with the Kafka clients' TLS and SASL settings, or "".
        generation: the log generation: 0, and one more whenever the ledger moved (kafka).
    """

    text: str
    scheme: str
    path: str = ""
    bootstrap: str = ""
    prefix: str = ""
    projection: str = ""
    registry: str = ""
    client: str = ""
    development: bool = False
    generation: int = 0

    def topic(self, topic: Topic) -> str:
        """The Kafka topic's name."""
        moved = f".g{self.generation}" if self.generation else ""
        return f"{self.prefix}.{topic.value}{moved}"


def parse(text: str) -> StoreUrl:
    """The URL in its parts. Raises InvalidArgumentError (field `url`)."""
    if not _is_text(text):
        raise _invalid(text, "sqlite:///absolute/path/ledger.db")
    parts = _split(text)
    if parts.scheme == "sqlite":
        path = unquote(parts.path)
        if parts.netloc or parts.query or parts.fragment or not path.strip("/"):
            raise _invalid(text, "sqlite:///absolute/path/ledger.db")
        return StoreUrl(text, "sqlite", path=path)
    if parts.scheme == "kafka":
        return _kafka(text)
    raise _invalid(text, "sqlite:///… or kafka://…")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _kafka(text: str) -> StoreUrl:
    example = "kafka://host:9092/fencepost?projection=redis://host:6379/0"
    parts = _split(text)
    query = parts.query.replace("+", "%2B")  # a plus stands for itself: redis+cluster://, passwords
    options = {name: values[-1] for name, values in parse_qs(query).items()}
    unknown = set(options) - {"projection", "registry", "client", "development", "generation"}
    prefix = parts.path.strip("/")
    projection = options.get("projection", "")
    generation = options.get("generation", "0")
    if unknown or not generation.isdecimal() or not parts.netloc or not _PREFIX.fullmatch(prefix):
        raise _invalid(text, example)
    if _split(projection).scheme not in {"redis", "rediss", "redis+cluster"}:
        raise _invalid(text, example)
    return StoreUrl(
        text,
        "kafka",
        bootstrap=parts.netloc,
        prefix=prefix,
        projection=projection,
        registry=options.get("registry", ""),
        client=options.get("client", ""),
        development=options.get("development", "") in {"1", "true", "yes"},
        generation=int(generation),
    )


def _split(text: str) -> SplitResult:
    try:
        return urlsplit(text)
    except ValueError as error:  # brackets that are no IPv6 address
        raise _invalid(text, "sqlite:///… or kafka://…") from error


def _invalid(text: str, example: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"url: {text!r} is not a store URL.", next_step=f"Write it like {example}.", field="url"
    )
