"""What can go wrong between values and bytes.

SchemaError
├── EncodeError               the values do not fit the schema, or are too large
├── DecodeError               the bytes are corrupt, truncated, too large, or carry something after their end
│   └── UnknownSchemaError    they were written with a schema that this version does not know
└── RegistryUnavailableError  the schema registry gave no answer: nothing is known about the bytes; try again
"""

from typing import ClassVar

__all__ = ["DecodeError", "EncodeError", "RegistryUnavailableError", "SchemaError", "UnknownSchemaError"]


class SchemaError(ValueError):
    """The parent of every error that this package raises.

    Args:
        what: The schema or thing concerned, such as ``EffectFact``.
        reason: What is wrong with it.
    """

    retryable: ClassVar[bool] = False
    next_step: ClassVar[str] = "check the schema files of this installation"

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)  # the arguments in order, so that pickling rebuilds the error
        self.what = what
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}; {self.next_step}"

    def to_dict(self) -> dict[str, object]:
        """The error as plain values: its class, its fields, whether trying again can help."""
        return {"error": type(self).__name__, "retryable": self.retryable, "message": str(self), **vars(self)}


class EncodeError(SchemaError):
    """The values cannot be written; the same values never can."""

    next_step = "correct the values, or send large ones by digest and reference"


class DecodeError(SchemaError):
    """The bytes cannot be read; the same bytes never can, with this version of the schemas."""

    next_step = "set the bytes aside and look at what wrote them"


class UnknownSchemaError(DecodeError):
    """The bytes name a schema that the committed catalogue does not hold.

    Args:
        what: The schema that was expected.
        reason: Why the schema is not known.
        schema_ref: The fingerprint (hexadecimal) or the registry's id, as found in the bytes.
    """

    next_step = "upgrade this reader to the version that wrote the bytes, or configure the registry that they refer to"

    def __init__(self, what: str, reason: str, schema_ref: str) -> None:
        super().__init__(what, reason)
        self.args = (what, reason, schema_ref)
        self.schema_ref = schema_ref


class RegistryUnavailableError(SchemaError):
    """The schema registry could not be asked. Says nothing about the bytes, so they must not be set aside."""

    retryable = True
    next_step = "try again when the registry answers"
