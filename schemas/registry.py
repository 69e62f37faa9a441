"""The same bodies behind the header of a Confluent schema registry: ``00``, the schema's id in 4 bytes, the body.

The registry only maps ids to schemas. Whether a schema is accepted is decided by the committed catalogue, as ever: a
registry that is wrong or was taken over cannot bring in a schema that was not published here.

Source: Confluent, "Wire format".
"""

import json
import struct
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, TypeVar

from .bounds import Limits, require_bounded
from .catalogue import fingerprint
from .codec import REGISTRY_MARKER, FramedCodec, SingleObjectFraming
from .errors import DecodeError, RegistryUnavailableError, SchemaError, UnknownSchemaError

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

    from .formats import Format

__all__ = ["RegistryCodec", "connect"]

_Answer = TypeVar("_Answer")

_HEADER = struct.Struct(">cI")
_WHAT = "schema registry"
_MAX_SCHEMA_CHARS = 1 << 18
_MAX_KNOWN_IDS = 1024
_TIMEOUT_S = 10  # the client's own default is to wait for ever
_RETRIES = 2
_NOT_FOUND = "404"  # how the registry's own codes for "no such …" start
_REFUSALS = frozenset({409, 422})  # incompatible with what the subject holds; not valid


class RegistryCodec(FramedCodec):
    """A ``Codec`` that writes with a registry's ids, and reads those and single-object encodings, told by their first byte.

    Every schema is registered when the codec is built, so a registry that fails later cannot keep an outcome from being
    written. Reading asks the registry once for each id.

    Args:
        client: A synchronous registry client; give it a timeout.
        topics: Topics whose record schema is registered, under ``<topic>-value``; facts go under their full names.
        limits: See ``FramedCodec``.

    Raises:
        RegistryUnavailableError: The registry did not answer; trying again is safe.
        SchemaError: The registry refused a schema.
    """

    def __init__(self, client: "SchemaRegistryClient", topics: Sequence[str], limits: Limits | None = None) -> None:
        framing = _RegistryFraming(client)
        super().__init__(framing, limits or Limits())
        framing.register(self._record, [f"{topic}-value" for topic in topics])
        for fact in (self._effect_fact, self._agent_fact):
            framing.register(fact, [f"{fact.schema['namespace']}.{fact.what}"])


def connect(url: str, topics: Sequence[str]) -> RegistryCodec:
    """A codec on a registry, by URL; see ``RegistryCodec``. Codecs of one process share a client for each URL."""
    try:
        client = _client(url)
    except ImportError as error:
        raise SchemaError(_WHAT, "its client is missing: install confluent-kafka[schemaregistry]") from error
    except (ValueError, TypeError) as error:
        raise SchemaError(_WHAT, f"unusable URL: {error}") from error
    return RegistryCodec(client, topics)


@cache
def _client(url: str) -> "SchemaRegistryClient":
    from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: PLC0415 - hundreds of milliseconds

    return SchemaRegistryClient.new_client({"url": url, "timeout": _TIMEOUT_S, "max.retries": _RETRIES})


class _RegistryFraming:
    """A ``Framing`` that looks fingerprints up by id, and remembers them: an id never changes its meaning."""

    def __init__(self, client: "SchemaRegistryClient") -> None:
        self._client = client
        self._single_object = SingleObjectFraming()
        self._headers: dict[bytes, bytes] = {}  # fingerprint → header
        self._fingerprints: dict[int, bytes] = {}  # id → fingerprint; empty for what is no usable schema

    def register(self, form: "Format", subjects: Sequence[str]) -> None:
        """Makes the present schema known under each subject; what the registry has already is only looked up."""
        from confluent_kafka.schema_registry import Schema  # noqa: PLC0415 - see _client

        schema = Schema.from_dict({"schema": json.dumps(form.schema, separators=(",", ":")), "schemaType": "AVRO"})
        for subject in subjects:
            found = _ask(partial(self._client.lookup_schema, subject, schema))
            schema_id = found.schema_id if found else _ask(partial(self._client.register_schema, subject, schema))
            if schema_id is None:
                raise SchemaError(_WHAT, f"gave no id for the subject {subject}")
            self._fingerprints[schema_id] = form.fingerprint
            self._headers.setdefault(form.fingerprint, _HEADER.pack(REGISTRY_MARKER, schema_id))

    def header(self, form: "Format") -> bytes:
        """See ``Framing``."""
        return self._headers[form.fingerprint]

    def locate(self, form: "Format", data: bytes) -> tuple[int, bytes]:
        """See ``Framing``. Asks the registry about an id that was not seen before."""
        if data[:1] != REGISTRY_MARKER:
            return self._single_object.locate(form, data)
        if len(data) < _HEADER.size:
            raise DecodeError(form.what, f"truncated in the header: {len(data)} bytes")
        schema_id: int = _HEADER.unpack_from(data)[1]
        known = self._fingerprints.get(schema_id)
        if known is None:
            found = _ask(partial(self._client.get_schema, schema_id))
            if found is None:
                raise UnknownSchemaError(form.what, f"the registry has no id {schema_id}", str(schema_id))
            known = _fingerprint_of(found)
            if len(self._fingerprints) < _MAX_KNOWN_IDS:
                self._fingerprints[schema_id] = known
        if not form.knows(known):
            raise UnknownSchemaError(
                form.what, f"the registry's id {schema_id} is no published version of this schema", str(schema_id)
            )
        return _HEADER.size, known


def _fingerprint_of(found: "Schema") -> bytes:
    """The fingerprint of a schema from the registry; empty if it is none that could have been published here."""
    text = found.schema_str
    if (found.schema_type or "AVRO") != "AVRO" or not text or len(text) > _MAX_SCHEMA_CHARS:
        return b""
    try:
        schema = json.loads(text)
        require_bounded(schema, _WHAT, Limits())
        return fingerprint(schema)
    except Exception:  # noqa: BLE001 - anybody's JSON reaches the Avro library here, and it raises whatever it likes
        return b""


def _ask(question: Callable[[], _Answer]) -> _Answer | None:
    """The registry's answer; None if it does not have what was asked for.

    The client lets the errors of its HTTP library through, whichever one it found, so all of them are translated.
    """
    from confluent_kafka.schema_registry import SchemaRegistryError  # noqa: PLC0415 - see _client

    try:
        return question()
    except SchemaRegistryError as error:
        if str(error.error_code).startswith(_NOT_FOUND):  # a bare 404 may be a proxy's and says nothing about schemas
            return None
        if error.http_status_code in _REFUSALS:
            raise SchemaError(_WHAT, f"refuses the schema: {error.error_message}") from error
        raise RegistryUnavailableError(_WHAT, str(error)) from error
    except Exception as error:
        raise RegistryUnavailableError(_WHAT, f"{type(error).__name__}: {error}") from error
