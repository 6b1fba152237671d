#!/usr/bin/env python3
"""A server of norm.v1 as it is written in an afternoon: grpcio and PyTorch. `normctl bench` measures it beside normd.

Serves Normalize for rms_norm and layer_norm over the last dimension (x, weight, bias, eps, weight_offset), GetServerInfo, and
Echo; what else a request asks for is UNIMPLEMENTED. Needs grpcio, protobuf 3.20 or newer and PyTorch; no generated code.

Usage: torch_server.py --descriptors norm_v1.binpb [--listen HOST:PORT] [--device cuda|cpu] [--threads N] [--port-file FILE]
"""

import argparse
import concurrent.futures
import math
import os
import pathlib
import signal
import threading
import warnings

import grpc
import torch
from norm_messages import Messages

# x is read where protobuf put it, and only read.
warnings.filterwarnings("ignore", message="The given buffer is not writable")


class Unsupported(Exception):
    """What this server does not do."""


class Normalizer:
    DTYPES = {"DTYPE_F32": torch.float32, "DTYPE_F16": torch.float16, "DTYPE_BF16": torch.bfloat16, "DTYPE_F64": torch.float64}

    def __init__(self, messages, device):
        self._device = torch.device(device)
        self._dtypes = {number: self.DTYPES[name] for number, name in messages.dtypes.items() if name in self.DTYPES}
        self._response = messages.NormalizeResponse

    def normalize(self, request, context):
        try:
            y = self._compute(request)
        except Unsupported as problem:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, str(problem))
        except (KeyError, RuntimeError, ValueError) as problem:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(problem))
        response = self._response()
        response.y.dtype = request.x.dtype
        response.y.shape.extend(request.x.shape)
        response.y.data = y.cpu().contiguous().view(torch.uint8).numpy().tobytes() if y.numel() else b""
        return response

    def _tensor(self, message):
        dtype = self._dtypes[message.dtype]
        if math.prod(message.shape) == 0:
            return torch.empty(tuple(message.shape), dtype=dtype, device=self._device)
        return torch.frombuffer(message.data, dtype=dtype).reshape(tuple(message.shape)).to(self._device)

    @torch.inference_mode()
    def _compute(self, request):
        op = request.WhichOneof("op")
        if op not in ("rms_norm", "layer_norm"):
            raise Unsupported(f"op {op}")
        for field in ("residual", "running_mean", "running_var"):
            if request.HasField(field):
                raise Unsupported(field)
        parameters = getattr(request, op)
        if request.return_statistics or parameters.normalized_dims > 1 or parameters.rounding != 0:
            raise Unsupported("return_statistics, normalized_dims > 1 or a rounding")
        x = self._tensor(request.x)
        weight = self._tensor(request.weight) if request.HasField("weight") else None
        bias = self._tensor(request.bias) if request.HasField("bias") else None
        if op == "layer_norm":
            eps = parameters.eps if parameters.HasField("eps") else 1e-5
            return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)
        eps = parameters.eps if parameters.HasField("eps") else 1e-6
        if weight is not None and parameters.weight_offset != 0:
            weight = weight + parameters.weight_offset
        if hasattr(torch.nn.functional, "rms_norm"):
            return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return (y if weight is None else y * weight).to(x.dtype)


def echo(request, context):
    """The bytes of the request, or as many as norm-echo-bytes asks for."""
    sizes = [int(value) for key, value in context.invocation_metadata() if key == "norm-echo-bytes"]
    return request[:sizes[0]].ljust(sizes[0], b"\0") if sizes else request


def server_info(messages, device):
    info = messages.ServerInfo(version=f"PyTorch {torch.__version__}, grpcio {grpc.__version__}")
    model = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    info.devices.add(name=f"{device}:0" if device == "cuda" else device, model=model, healthy=True)
    return info


def start(messages, options):
    normalizer = Normalizer(messages, options.device)
    info = server_info(messages, options.device)
    methods = {
        "NormalizationService": {"Normalize": grpc.unary_unary_rpc_method_handler(
            normalizer.normalize, request_deserializer=messages.NormalizeRequest.FromString,
            response_serializer=messages.NormalizeResponse.SerializeToString)},
        "ServerService": {"GetServerInfo": grpc.unary_unary_rpc_method_handler(
            lambda request, context: info, response_serializer=messages.ServerInfo.SerializeToString)},
        "EchoService": {"Echo": grpc.unary_unary_rpc_method_handler(echo)},
    }
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(max_workers=options.threads),
                         options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)])
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(f"norm.v1.{service}", handlers)
                                     for service, handlers in methods.items()])
    host = options.listen.rpartition(":")[0]
    address = f"{host}:{server.add_insecure_port(options.listen)}"
    server.start()
    return server, address


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--descriptors", required=True, help="descriptor set of norm/v1, with imports")
    parser.add_argument("--listen", default="127.0.0.1:8472")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cuda", "cpu"))
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--port-file", help="written when ready: grpc=host:port")
    options = parser.parse_args()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    server, address = start(Messages(options.descriptors), options)
    if options.port_file:
        unfinished = pathlib.Path(options.port_file + ".unfinished")
        unfinished.write_text(f"grpc={address}\n")
        unfinished.rename(options.port_file)
    print(f"ready grpc={address}", flush=True)
    stop.wait()
    server.stop(1).wait()


if __name__ == "__main__":
    main()
