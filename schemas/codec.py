"""Values to bytes and back, in Avro's single-object encoding.

An encoding is ``C3 01``, the 8-byte fingerprint of the writer's schema, and the Avro body. It says by itself how it is to
be read, for ever, without a registry. Every function here is pure; the schemas are loaded at the first use.

Source: Avro specification, "Single-object encoding".
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Protocol

from .bounds import Limits
from .errors import DecodeError, UnknownSchemaError
from .formats import Format, load_format
from .readers import StandIns

__all__ = [
    "SINGLE_OBJECT",
    "Codec",
    "FramedCodec",
    "Framing",
    "SingleObjectCodec",
    "SingleObjectFraming",
    "decode_agent_fact",
    "decode_effect_fact",
    "decode_record",
    "encode_agent_fact",
    "encode_effect_fact",
    "encode_record",
    "peek_fingerprint",
]

MARKER = b"\xc3\x01"
HEADER_BYTES = len(MARKER) + 8
REGISTRY_MARKER = b"\x00"


class Codec(Protocol):
    """Encodes and decodes the three kinds of value that a ledger's log is made of.

    Values are plain dicts with the field names of the ``.avsc`` files. On encoding, a missing field takes its default and
    an enum symbol that the schema lacks becomes ``UNKNOWN``; a decoded dict has every field, and belongs to the caller.

    Guarantees: equal values give equal bytes; what is encoded can be decoded; no state that a caller could notice.

    Raises (encoding; trying again never helps):
        EncodeError: The values do not fit the schema or the limits.

    Raises (decoding; trying again helps in the last case only):
        UnknownSchemaError: The writer's schema is not one of the published ones that this version knows.
        DecodeError: The bytes are not one complete value; nothing large was allocated to find out.
        RegistryUnavailableError: Only with a registry. The bytes may be good: they must not be set aside.
    """

    def encode_record(self, values: Mapping[str, Any]) -> bytes:
        """The bytes of a log record."""
        ...

    def decode_record(self, data: bytes) -> dict[str, Any]:
        """The values of a log record."""
        ...

    def encode_effect_fact(self, values: Mapping[str, Any]) -> bytes:
        """The bytes of an operation's fact or a fence."""
        ...

    def decode_effect_fact(self, data: bytes) -> dict[str, Any]:
        """The values of an operation's fact or a fence."""
        ...

    def encode_agent_fact(self, values: Mapping[str, Any]) -> bytes:
        """The bytes of an agent's fact."""
        ...

    def decode_agent_fact(self, data: bytes) -> dict[str, Any]:
        """The values of an agent's fact."""
        ...


class Framing(Protocol):
    """What stands in front of a body and names the writer's schema."""

    def header(self, form: Format) -> bytes:
        """The bytes that go in front of a body of the present schema."""
        ...

    def locate(self, form: Format, data: bytes) -> tuple[int, bytes]:
        """Where the body starts, and the fingerprint of the schema that wrote it.

        Raises:
            DecodeError: The header is damaged (its subclass: it names nothing that can be looked up here).
        """
        ...


class SingleObjectFraming:
    """``C3 01`` and the fingerprint itself."""

    def header(self, form: Format) -> bytes:
        """See ``Framing``."""
        return MARKER + form.fingerprint

    def locate(self, form: Format, data: bytes) -> tuple[int, bytes]:
        """See ``Framing``."""
        if data[:2] != MARKER or len(data) < HEADER_BYTES:
            raise _no_header(form.what, data)
        return HEADER_BYTES, data[2:HEADER_BYTES]


class FramedCodec:
    """A ``Codec`` with a choice of header.

    Args:
        framing: The header.
        limits: What one encoding may take; lower limits refuse what a codec with higher ones wrote.
    """

    def __init__(self, framing: Framing, limits: Limits) -> None:
        self._framing = framing
        self._limits = limits

    @cached_property
    def _record(self) -> Format:
        return load_format("record", self._limits)

    @cached_property
    def _effect_fact(self) -> Format:
        return load_format("effect_fact", self._limits)

    @cached_property
    def _agent_fact(self) -> Format:
        return load_format("agent_fact", self._limits)

    def encode_record(self, values: Mapping[str, Any]) -> bytes:
        """The bytes of a log record; see ``Codec``."""
        return self._encode(self._record, values)

    def decode_record(self, data: bytes) -> dict[str, Any]:
        """The values of a log record; see ``Codec``."""
        return self._decode(self._record, data)

    def encode_effect_fact(self, values: Mapping[str, Any]) -> bytes:
        """The bytes of an operation's fact or a fence; see ``Codec``."""
        return self._encode(self._effect_fact, values)

    def decode_effect_fact(self, data: bytes) -> dict[str, Any]:
        """The values of an operation's fact or a fence; see ``Codec``."""
        return self._decode(self._effect_fact, data)

    def encode_agent_fact(self, values: Mapping[str, Any]) -> bytes:
        """The bytes of an agent's fact; see ``Codec``."""
        return self._encode(self._agent_fact, values)

    def decode_agent_fact(self, data: bytes) -> dict[str, Any]:
        """The values of an agent's fact; see ``Codec``."""
        return self._decode(self._agent_fact, data)

    def told_reader(self, name: str, stand_ins: StandIns) -> Callable[[bytes], dict[str, Any]]:
        """A function that decodes one kind of value, and may leave out fields that are at their defaults.

        Args:
            name: One of ``catalogue.NAMES``.
            stand_ins: What values are made of, see ``readers.StandIns``; lists come as tuples.

        Returns:
            A function that raises what the codec's ``decode_`` function of this name raises, for the same bytes.
        """
        form: Format = {"record": self._record, "effect_fact": self._effect_fact, "agent_fact": self._agent_fact}[name]
        header, usual = self._framing.header(form), form.usual_reader(stand_ins)
        start = len(header)

        def read(data: bytes) -> dict[str, Any]:
            values = usual(data, start) if data.startswith(header) else None
            return form.stood_in(self._decode(form, data), stand_ins) if values is None else values

        return read

    def _encode(self, form: Format, values: Mapping[str, Any]) -> bytes:
        return form.write(self._framing.header(form), values)

    def _decode(self, form: Format, data: bytes) -> dict[str, Any]:
        start, fingerprint = self._framing.locate(form, data)
        return form.read(data, start, fingerprint)


class SingleObjectCodec(FramedCodec):
    """The default ``Codec``: self-describing bytes, no service needed.

    Args:
        limits: See ``FramedCodec``.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__(SingleObjectFraming(), limits or Limits())


SINGLE_OBJECT = SingleObjectCodec()

encode_record = SINGLE_OBJECT.encode_record
decode_record = SINGLE_OBJECT.decode_record
encode_effect_fact = SINGLE_OBJECT.encode_effect_fact
decode_effect_fact = SINGLE_OBJECT.decode_effect_fact
encode_agent_fact = SINGLE_OBJECT.encode_agent_fact
decode_agent_fact = SINGLE_OBJECT.decode_agent_fact


def peek_fingerprint(data: bytes) -> bytes:
    """The fingerprint of the schema that a single-object encoding was written with, published or not.

    Returns:
        8 bytes, little-endian as in the header.

    Raises:
        DecodeError: The bytes do not start with a complete single-object header.
    """
    if len(data) < HEADER_BYTES or data[:2] != MARKER:
        raise _no_header("single-object encoding", data)
    return data[2:HEADER_BYTES]


def _no_header(what: str, data: bytes) -> DecodeError:
    if data[:1] == REGISTRY_MARKER and len(data) >= 5:  # noqa: PLR2004 - marker and schema id
        schema_id = str(int.from_bytes(data[1:5], "big"))
        return UnknownSchemaError(
            what, f"written with id {schema_id} of a schema registry, and none is configured", schema_id
        )
    if MARKER.startswith(data[:2]):
        return DecodeError(what, f"truncated in the header: {len(data)} bytes")
    return DecodeError(what, f"starts with {data[:2].hex()} instead of {MARKER.hex()}")
