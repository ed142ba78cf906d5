"""The messages of MLCommons Chakra execution traces, described from the published schema (mlcommons/chakra, schema/protobuf/et_def.proto).

A file is a GlobalMetadata and then Nodes, each behind its length as a varint. Messages that are not used here (storage operations) are kept
as unknown fields by protobuf.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

PACKAGE = "ChakraProtoMsg"
# Kinds of values of an attribute, in the order of their fields: `<kind>_val` is field 3 + 2 k, `<kind>_list` field 4 + 2 k.
VALUES = (
    "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes",
)  # fmt: skip
NODE_TYPES = (
    "INVALID_NODE", "METADATA_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE", "COMP_NODE", "COMM_SEND_NODE", "COMM_RECV_NODE", "COMM_COLL_NODE",
    "STORAGE_NODE", "BATCH_NODE", "CHECKPOINT_NODE",
)  # fmt: skip
METADATA, COMPUTE, SEND, RECEIVE, COLLECTIVE = (NODE_TYPES.index(f"{name}_NODE") for name in ("METADATA", "COMP", "COMM_SEND", "COMM_RECV", "COMM_COLL"))
# CollectiveCommType: a number for each op; what parasim has no word for keeps the schema's, in lower case.
COLLECTIVES = ("all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all", "reduce_scatter", "reduce_scatter_block", "barrier")
# Message -> (field, number, type: a scalar, an enum of integers, or another message; repeated where it ends in *)
MESSAGES: Mapping[str, Sequence[tuple[str, int, str]]] = {
    "GlobalMetadata": (("version", 1, "string"), ("attr", 2, "AttributeProto*")),
    "IOInfo": (("values", 1, "string"), ("shapes", 2, "string"), ("types", 3, "string")),
    "Node": (
        ("id", 1, "uint64"),
        ("name", 2, "string"),
        ("type", 3, "int32"),
        ("ctrl_deps", 4, "uint64*"),
        ("data_deps", 5, "uint64*"),
        ("start_time_micros", 6, "uint64"),
        ("duration_micros", 7, "uint64"),
        ("inputs", 8, "IOInfo"),
        ("outputs", 9, "IOInfo"),
        ("attr", 10, "AttributeProto*"),
    ),
}


def _field(message: Any, name: str, number: int, kind: str) -> Any:
    field = message.field.add(name=name, number=number, json_name=name)
    field.label = FieldDescriptorProto.LABEL_REPEATED if kind.endswith("*") else FieldDescriptorProto.LABEL_OPTIONAL
    kind = kind.removesuffix("*")
    if kind in VALUES:
        field.type = getattr(FieldDescriptorProto, f"TYPE_{kind.upper()}")
    else:
        field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
    return field


def _file() -> FileDescriptorProto:
    file = FileDescriptorProto(name="parasim/chakra.proto", package=PACKAGE, syntax="proto3")
    attribute = file.message_type.add(name="AttributeProto")
    attribute.oneof_decl.add(name="value")
    _field(attribute, "name", 1, "string")
    _field(attribute, "doc_string", 2, "string")
    for k, kind in enumerate(VALUES):
        _field(file.message_type.add(name=f"{kind.capitalize()}List"), "values", 1, f"{kind}*")
        _field(attribute, f"{kind}_val", 3 + 2 * k, kind).oneof_index = 0
        _field(attribute, f"{kind}_list", 4 + 2 * k, f"{kind.capitalize()}List").oneof_index = 0
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for row in fields:
            _field(message, *row)
    return file


def _classes() -> dict[str, Any]:
    pool = DescriptorPool()
    pool.AddSerializedFile(_file().SerializeToString())
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in MESSAGES}


_MADE = _classes()
GlobalMetadata, Node = _MADE["GlobalMetadata"], _MADE["Node"]


def value_of(attribute: Any) -> Any:
    """The value of an AttributeProto, a list as a list; None where it has none."""
    which = attribute.WhichOneof("value")
    if which is None:
        return None
    value = getattr(attribute, which)
    return list(value.values) if which.endswith("_list") else value
