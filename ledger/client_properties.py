"""How clients of a store authenticate: a file of properties beside the URL, with secrets from the environment.

    security.protocol = SASL_SSL
    sasl.mechanism    = SCRAM-SHA-512
    sasl.username     = fencepost
    sasl.password     = ${KAFKA_PASSWORD}
    ssl.ca.location   = /etc/ssl/kafka-ca.pem

Only what is about connecting and authenticating can be set: on the other settings a promise rests. Neither
the URL nor the file needs to hold a secret; no error shows a value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from .errors import InvalidArgumentError

_ALLOWED = re.compile(
    r"(security|sasl|ssl)\.[a-z0-9.]+|enable\.ssl\.certificate\.verification|client\.id|https\.ca\.location"
)
_PLACE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def read(path: str, environment: Mapping[str, str] | None = None) -> tuple[tuple[str, str], ...]:
    """The properties in a file, `${NAME}` taken from the environment; none for an empty path.

    Args:
        environment: the process's own if not given.

    Raises InvalidArgumentError (field `client`): the file, a line, a setting, or a variable is not usable.
    """
    if not path:
        return ()
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(f"{path} cannot be read ({type(error).__name__})") from error
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith(("#", "!")):
            continue
        name, separator, value = (part.strip() for part in text.partition("="))
        if not separator:
            raise _unusable(f"line {number} of {path} is not name = value")
        if not _ALLOWED.fullmatch(name):
            raise _unusable(f"{name} in line {number} of {path} cannot be chosen there")
        found[name] = expanded(value, environment)
    return tuple(sorted(found.items()))


def expanded(text: str, environment: Mapping[str, str] | None = None, *, in_url: bool = False) -> str:
    """The text with `${NAME}` taken from the environment. Raises InvalidArgumentError naming a variable that is not set.

    Args:
        in_url: whether the values are percent-quoted, so that a password may hold any character.
    """
    known = os.environ if environment is None else environment

    def value(match: re.Match[str]) -> str:
        if match[1] not in known:
            raise _unusable(f"the environment variable {match[1]} is not set")
        return quote(known[match[1]], safe="") if in_url else known[match[1]]

    return _PLACE.sub(value, text)


def _unusable(why: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"client: {why}.",
        next_step="Write security.*, sasl.*, and ssl.* settings, one a line; secrets as ${NAME}.",
        field="client",
    )
