"""The messages of norm.v1 without generated code. Needs protobuf 3.20 or newer."""

import pathlib

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


class Messages:
    """The classes of norm.v1, from what protoc --descriptor_set_out --include_imports wrote."""

    def __init__(self, path):
        self._pool = descriptor_pool.DescriptorPool()
        for file in descriptor_pb2.FileDescriptorSet.FromString(pathlib.Path(path).read_bytes()).file:
            self._pool.AddSerializedFile(file.SerializeToString())
        self.dtypes = {value.number: value.name for value in self._pool.FindEnumTypeByName("norm.v1.DType").values}

    def __getattr__(self, name):
        descriptor = self._pool.FindMessageTypeByName(f"norm.v1.{name}")
        if hasattr(message_factory, "GetMessageClass"):
            return message_factory.GetMessageClass(descriptor)
        return message_factory.MessageFactory(self._pool).GetPrototype(descriptor)
