"""The record formats of the effect ledger: Avro schemas and their codec."""

from .bounds import Limits
from .codec import (
    SINGLE_OBJECT,
    Codec,
    SingleObjectCodec,
    decode_agent_fact,
    decode_effect_fact,
    decode_record,
    encode_agent_fact,
    encode_effect_fact,
    encode_record,
    peek_fingerprint,
)
from .errors import DecodeError, EncodeError, RegistryUnavailableError, SchemaError, UnknownSchemaError

__all__ = [
    "SINGLE_OBJECT",
    "Codec",
    "DecodeError",
    "EncodeError",
    "Limits",
    "RegistryUnavailableError",
    "SchemaError",
    "SingleObjectCodec",
    "UnknownSchemaError",
    "decode_agent_fact",
    "decode_effect_fact",
    "decode_record",
    "encode_agent_fact",
    "encode_effect_fact",
    "encode_record",
    "peek_fingerprint",
    "registry_codec",
]


def registry_codec(url: str, topics: tuple[str, ...] = ("fencepost.effects", "fencepost.agents")) -> Codec:
    """A codec that writes with the ids of a schema registry, and reads both those and single-object encodings.

    Args:
        url: Where the registry answers; ``mock://`` for one inside this process.
        topics: Topics whose record schema is registered, under ``<topic>-value``.

    Raises:
        RegistryUnavailableError: The registry does not answer; trying again is safe.
        SchemaError: The registry refuses a schema, or its client is not installed.
    """
    from .registry import connect  # noqa: PLC0415 - its client costs hundreds of milliseconds

    return connect(url, topics)
