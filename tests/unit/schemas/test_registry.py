"""Encodings that carry a schema registry's id; the registry runs inside the test."""

import json
import struct
import sys
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError

from fencepost import schemas
from fencepost.schemas import (
    DecodeError,
    RegistryUnavailableError,
    SchemaError,
    UnknownSchemaError,
    catalogue,
    registry_codec,
)
from fencepost.schemas.registry import RegistryCodec

TOPICS = ("fencepost.effects", "fencepost.agents")
SUBJECTS = {"fencepost.effects-value", "fencepost.agents-value", "fencepost.EffectFact", "fencepost.AgentFact"}


@pytest.fixture
def client() -> SchemaRegistryClient:
    return SchemaRegistryClient.new_client({"url": "mock://"})


@pytest.fixture
def codec(client: SchemaRegistryClient) -> RegistryCodec:
    return RegistryCodec(client, TOPICS)


def avro(schema: Any) -> Schema:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return Schema.from_dict({"schema": text, "schemaType": "AVRO"})


def header(schema_id: int | None) -> bytes:
    return b"\x00" + struct.pack(">I", schema_id)


def test_all_schemas_are_registered_at_once(client: SchemaRegistryClient, codec: RegistryCodec) -> None:
    """The record's schema goes under each topic, facts under their full names, so that nothing is left for later."""
    assert set(client.get_subjects()) == SUBJECTS
    registered = json.loads(str(client.get_latest_version("fencepost.EffectFact").schema.schema_str))
    assert registered == catalogue.current("effect_fact").schema


def test_encodings_carry_the_id_and_the_same_body(client: SchemaRegistryClient, codec: RegistryCodec) -> None:
    """The registry's header replaces the single-object header; the body stays."""
    for kind, subject in (("record", "fencepost.effects-value"), ("agent_fact", "fencepost.AgentFact")):
        data = getattr(codec, f"encode_{kind}")({})
        assert (
            data == header(client.get_latest_version(subject).schema_id) + getattr(schemas, f"encode_{kind}")({})[10:]
        )
        assert getattr(codec, f"decode_{kind}")(data) == getattr(schemas, f"decode_{kind}")(
            getattr(schemas, f"encode_{kind}")({})
        )


def test_both_headers_are_read(codec: RegistryCodec) -> None:
    """With a registry, the first byte decides; without one, a registry's id cannot be read."""
    values = {"kind": "COMMITTED", "op_id": "op"}
    assert codec.decode_effect_fact(schemas.encode_effect_fact(values))["op_id"] == "op"
    assert codec.decode_effect_fact(codec.encode_effect_fact(values))["op_id"] == "op"
    with pytest.raises(UnknownSchemaError, match="configure the registry"):
        schemas.decode_effect_fact(codec.encode_effect_fact(values))


def test_a_second_codec_finds_the_ids_and_registers_nothing(client: SchemaRegistryClient, codec: RegistryCodec) -> None:
    """A process that starts later uses the ids that are there."""
    other = RegistryCodec(client, TOPICS)
    assert other.encode_effect_fact({}) == codec.encode_effect_fact({})
    assert [len(client.get_versions(subject)) for subject in sorted(SUBJECTS)] == [1, 1, 1, 1]


def test_documentation_does_not_matter_but_the_schema_does(client: SchemaRegistryClient, codec: RegistryCodec) -> None:
    """An id of an equal schema with other words is read; what was never published here is not, however harmless."""
    schema = catalogue.current("record").schema
    body = schemas.encode_record({"key": "k"})[10:]
    same = client.register_schema("elsewhere", avro(schema | {"doc": "other words"}))
    assert codec.decode_record(header(same) + body)["key"] == "k"
    widened = schema | {"fields": [*schema["fields"], {"name": "more", "type": "int", "default": 0}]}
    other = client.register_schema("elsewhere", avro(widened))
    for _ in range(2):  # the second answer is remembered
        with pytest.raises(UnknownSchemaError, match="no published version") as caught:
            codec.decode_record(header(other) + body + b"\x00")
        assert caught.value.schema_ref == str(other)


@pytest.mark.parametrize(
    "schema",
    [
        "{", "[" * 100_000, "7", '"int"', '{"type": "record"}', '{"type": 5}', '{"type": "record", "fields": [{}]}',
        '{"type": "record", "name": "Record", "namespace": "fencepost", "fields": [{"name": "n", "type": "Record"}]}',
        " " * 300_000,
    ],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_whatever_the_registry_holds_is_at_most_unknown(
    client: SchemaRegistryClient, codec: RegistryCodec, schema: str
) -> None:
    """Broken, foreign, deep or recursive schemas in the registry are no published version, and nothing worse."""
    found = client.register_schema("hostile", avro(schema))
    with pytest.raises(UnknownSchemaError):
        codec.decode_record(header(found) + b"\x00\x00\x00\x00\x00")


def test_another_kind_of_schema_is_unknown(client: SchemaRegistryClient, codec: RegistryCodec) -> None:
    """A Protobuf schema's id, or a fact's in front of a record, does not lead to a record."""
    proto = client.register_schema("proto", Schema.from_dict({"schema": "message A {}", "schemaType": "PROTOBUF"}))
    fact = client.get_latest_version("fencepost.EffectFact").schema_id
    assert fact is not None
    for found in (proto, fact):
        with pytest.raises(UnknownSchemaError):
            codec.decode_record(header(found) + b"\x00\x00\x00\x00\x00")


def test_an_id_that_the_registry_lacks_is_unknown(codec: RegistryCodec) -> None:
    """The registry's own "not found" is an answer about the bytes."""
    with pytest.raises(UnknownSchemaError, match="has no id 4294967295"):
        codec.decode_record(header(0xFFFF_FFFF) + b"\x00")


def test_damage_behind_the_header_is_found_as_ever(codec: RegistryCodec) -> None:
    """Truncation, surplus and forged counts are decode errors with either header."""
    data = codec.encode_record({"key": "k"})
    for damaged in (data[:3], data[:-1], data + b"\x00", data[:7] + b"\xfe\xff\xff\xff\x0f" + data[7:]):
        with pytest.raises(DecodeError):
            codec.decode_record(damaged)


@pytest.mark.parametrize(
    "failure",
    [
        SchemaRegistryError(503, -1, "down"),
        SchemaRegistryError(404, -1, "a proxy's page"),
        SchemaRegistryError(401, 40101, "who are you"),
        ConnectionError("refused"),
        TimeoutError(),
        TypeError("an answer that the client did not expect"),
    ],
)
def test_a_registry_that_does_not_answer_says_nothing_about_the_bytes(
    client: SchemaRegistryClient, codec: RegistryCodec, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """An outage is retryable and no DecodeError, or good records would be set aside; later the same bytes are read."""
    schema = avro(catalogue.current("record").schema | {"doc": "registered by another"})
    data = header(client.register_schema("elsewhere", schema)) + schemas.encode_record({})[10:]

    def fail(*_: object, **__: object) -> None:
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(client, "get_schema", fail)
        with pytest.raises(RegistryUnavailableError) as caught:
            codec.decode_record(data)
        assert caught.value.retryable
        assert not isinstance(caught.value, DecodeError)
        assert caught.value.__cause__ is failure
        codec.decode_record(codec.encode_record({}))  # its own ids need no question
    assert codec.decode_record(data)["key"] == ""


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (SchemaRegistryError(409, 409, "incompatible"), "refuses the schema: incompatible"),
        (SchemaRegistryError(422, 42201, "invalid"), "refuses the schema: invalid"),
    ],
)
def test_a_refused_schema_is_found_at_the_start(
    client: SchemaRegistryClient, monkeypatch: pytest.MonkeyPatch, failure: Exception, expected: str
) -> None:
    """A registry that does not take a schema is a configuration error, raised before anything is written."""

    def fail(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(client, "register_schema", fail)
    with pytest.raises(SchemaError, match=expected) as caught:
        RegistryCodec(client, TOPICS)
    assert not caught.value.retryable


def test_codecs_are_made_from_a_url() -> None:
    """One process shares one client for each URL; an unusable URL and a silent host are told apart."""
    first, second = registry_codec("mock://shared"), registry_codec("mock://shared", topics=("other",))
    assert second.decode_record(first.encode_record({"key": "k"}))["key"] == "k"
    with pytest.raises(SchemaError, match="unusable URL"):
        registry_codec("not a url")


def test_a_missing_client_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the optional client, the error says what to install."""
    monkeypatch.setitem(sys.modules, "confluent_kafka.schema_registry", None)
    with pytest.raises(SchemaError, match=r"confluent-kafka\[schemaregistry\]"):
        registry_codec("mock://nobody")
