"""Makes protobuf classes with some fields of another message, so that only these fields are decoded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bytes": _FIELD.TYPE_BYTES,
    "string": _FIELD.TYPE_STRING,
    "int32": _FIELD.TYPE_INT32,
    "int64": _FIELD.TYPE_INT64,
    "fixed64": _FIELD.TYPE_FIXED64,
    "sfixed64": _FIELD.TYPE_SFIXED64,
    "double": _FIELD.TYPE_DOUBLE,
}
"""The scalar types of protobuf that are used."""


class Field(NamedTuple):
    """A field. ``kind``: one of `_SCALARS`, or the name of a message in the same package."""

    name: str
    number: int
    kind: str
    repeated: bool = False


def make_classes(package: str, messages: Mapping[str, Iterable[Field]]) -> dict[str, type[Any]]:
    """Make the classes of a package of messages, by name.

    Args:
        package: the package's name. It must be unique.
        messages: the fields of each message, by name.
    """
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field in fields:
            label = _FIELD.LABEL_REPEATED if field.repeated else _FIELD.LABEL_OPTIONAL
            found = message.field.add(name=field.name, number=field.number, label=label)
            found.type = _SCALARS.get(field.kind, _FIELD.TYPE_MESSAGE)
            if field.kind not in _SCALARS:
                found.type_name = f".{package}.{field.kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}
