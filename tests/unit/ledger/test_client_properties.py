"""TLS and SASL: a file beside the URL, secrets from the environment, and nothing that a promise rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fencepost.consumer import kafka_client, redis_client
from fencepost.ledger import client_properties, urls
from fencepost.ledger.errors import InvalidArgumentError
from fencepost.producer.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

TEXT = """
# who we are
security.protocol = SASL_SSL
sasl.mechanism=SCRAM-SHA-512
sasl.password = ${KAFKA_PASSWORD}=x
ssl.ca.location = /etc/ssl/${WHERE}.pem
"""
ENVIRONMENT = {"KAFKA_PASSWORD": "hunter2", "WHERE": "kafka-ca"}
WANTED = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.password": "hunter2=x",
    "ssl.ca.location": "/etc/ssl/kafka-ca.pem",
}


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> urls.StoreUrl:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    file = tmp_path / "client.properties"
    file.write_text(TEXT)
    return urls.parse(f"kafka://h:9093/led?projection=rediss://u:${{REDIS_PASSWORD}}@r:6379/0&client={file}")


def test_properties_with_secrets_from_the_environment(url: urls.StoreUrl) -> None:
    """Comments and blanks are left out; `${NAME}` is what the environment says; the URL holds no secret."""
    assert dict(client_properties.read(url.client)) == WANTED
    assert dict(client_properties.read(url.client, {**ENVIRONMENT, "WHERE": "other"}))["ssl.ca.location"].endswith(
        "other.pem"
    )
    assert client_properties.read("") == ()
    assert "hunter2" not in url.text


def test_every_kafka_client_gets_them(url: urls.StoreUrl) -> None:
    """The admin client, readers, the projector with its producer, and the agents' producer; our own settings stay."""
    told = [
        kafka_client.admin_settings(url),
        kafka_client.reader_settings(url, "g"),
        kafka_client.projector_settings(url, "g"),
        kafka_client.producer_settings(url),
        Settings(client_options=client_properties.read(url.client)).client_configuration(url.bootstrap),
    ]
    for settings in told:
        assert {name: settings[name] for name in WANTED} == WANTED
        assert settings["bootstrap.servers"] == "h:9093"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("acks = 0", "acks in line 1"),
        ("auto.offset.reset = latest", "auto.offset.reset in line 1"),
        ("enable.idempotence = false", "enable.idempotence in line 1"),
        ("bootstrap.servers = elsewhere:9092", "bootstrap.servers in line 1"),
        ("sasl.password", "is not name = value"),
        ("sasl.password = ${NOT_SET_ANYWHERE}", "NOT_SET_ANYWHERE is not set"),
        ("\udcff", "cannot be read"),
    ],
)
def test_what_cannot_be_set(line: str, why: str, tmp_path: Path) -> None:
    """Settings that a promise rests on, lines that are none, variables that are not set: told by name, without a value."""
    file = tmp_path / "client.properties"
    file.write_bytes(line.encode(errors="surrogateescape"))
    with pytest.raises(InvalidArgumentError) as caught:
        client_properties.read(str(file))
    assert caught.value.field == "client"
    assert why in str(caught.value)


def test_file_that_is_not_there(tmp_path: Path) -> None:
    """It is named, and nothing is connected without it."""
    with pytest.raises(InvalidArgumentError) as caught:
        client_properties.read(str(tmp_path / "none"))
    assert "none cannot be read (FileNotFoundError)" in str(caught.value)


def test_password_of_redis_from_the_environment(url: urls.StoreUrl, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any character may be in it; an error names the host, and no password."""
    monkeypatch.setenv("REDIS_PASSWORD", "p@ss/word:%")
    client = redis_client.connect(url.projection)
    assert client.get_connection_kwargs()["password"] == "p@ss/word:%"
    client.close()
    assert "p@ss" not in str(redis_client.unavailable(url.projection, OSError("gone")))
    monkeypatch.delenv("REDIS_PASSWORD")
    with pytest.raises(InvalidArgumentError, match="REDIS_PASSWORD is not set"):
        redis_client.connect(url.projection)


def test_versions_of_redis() -> None:
    """The oldest that knows all commands of the scripts is 6.2; each node of a cluster counts."""
    for version, ok in (("6.2.0", True), ("7.0.15", True), ("10.1", True), ("6.0.20", False), ("5.9", False)):
        [check] = redis_client.version_checks({"redis_version": version})
        assert (check.ok, check.found, check.wanted, check.severity) == (ok, version, "at least 6.2", "refuse")
    nodes = {"a": {"redis_version": "7.2"}, "b": {"redis_version": "6.0"}}
    assert [check.ok for check in redis_client.version_checks(nodes)] == [True, False]
