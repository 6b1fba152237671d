"""One request, RMSNorm of bf16 rows, as a message of norm.v1 or of KServe v2, and the check of its answer.

A tensor is its bits, uint16 [rows, hidden]. Needs numpy and protobuf; KServeV2 also tritonclient.
"""

import pathlib
import sys

import numpy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "peers"))

EPS = 1e-6
LAST_PLACE = 2.0 ** -7  # of bf16, relative


def values(bits):
    """In float64."""
    return (bits.astype(numpy.uint32) << 16).view(numpy.float32).astype(numpy.float64)


def draw(rows, hidden):
    """Normally distributed, each row with a deviation of its own; the same each time."""
    x = numpy.random.default_rng(7).standard_normal((rows, hidden), dtype=numpy.float32)
    x *= (2 + numpy.arange(rows, dtype=numpy.float32) % 5)[:, None]
    return (x.view(numpy.uint32) >> 16).astype(numpy.uint16)


def check(x, y):
    """ValueError where y is not RMSNorm of x, computed in float64, to the last place of bf16."""
    wide = values(x)
    want = wide / numpy.sqrt((wide * wide).mean(-1, keepdims=True) + EPS)
    wrong = ~(numpy.abs(values(y) - want) <= LAST_PLACE * numpy.abs(want))
    if wrong.any():
        at = tuple(int(index) for index in numpy.argwhere(wrong)[0])
        raise ValueError(f"y: {wrong.sum()} of {y.size} values wrong, the first at {at}: {values(y)[at]}, expected {want[at]}")


class NormV1:
    METHOD = "/norm.v1.NormalizationService/Normalize"

    def __init__(self, descriptors):
        """descriptors: the file norm_v1.binpb."""
        from norm_messages import Messages
        self._messages = Messages(descriptors)
        self._bf16 = next(number for number, name in self._messages.dtypes.items() if name == "DTYPE_BF16")

    def encode(self, x):
        request = self._messages.NormalizeRequest()
        request.rms_norm.eps = EPS
        request.x.dtype = self._bf16
        request.x.shape.extend(x.shape)
        request.x.data = x.tobytes()
        return request.SerializeToString()

    def check(self, x, message):
        """ValueError where `message` does not answer encode(x)."""
        y = self._messages.NormalizeResponse.FromString(message).y
        check(x, numpy.frombuffer(y.data, numpy.uint16).reshape(tuple(y.shape)))


class EchoV1(NormV1):
    """The same request, echoed by normd: what server, client and machine can move."""
    METHOD = "/norm.v1.EchoService/Echo"

    def check(self, x, message):
        if message != self.encode(x):
            raise ValueError(f"echo: {len(message)} bytes that are not those of the request")


class KServeV2:
    METHOD = "/inference.GRPCInferenceService/ModelInfer"

    def __init__(self):
        from tritonclient.grpc import service_pb2
        self._messages = service_pb2

    def encode(self, x):
        request = self._messages.ModelInferRequest(model_name="rms_norm")
        request.inputs.add(name="x", datatype="BF16", shape=x.shape)
        request.raw_input_contents.append(x.tobytes())
        return request.SerializeToString()

    def check(self, x, message):
        """As NormV1's."""
        response = self._messages.ModelInferResponse.FromString(message)
        check(x, numpy.frombuffer(response.raw_output_contents[0], numpy.uint16).reshape(tuple(response.outputs[0].shape)))
