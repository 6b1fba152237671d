#!/usr/bin/env python3
"""The Triton Inference Server of the package nvidia-pytriton with a PyTorch model of RMSNorm. bars.py measures it beside normd.

Serves the model "rms_norm" of KServe v2 over gRPC: x [rows, hidden] to y, of one dtype. Requests of one hidden size share a batch while
every instance is busy (dynamic batching). Needs nvidia-pytriton with what it depends on, PyTorch, and the shared library of this
Python (Debian: libpython3.*). Exit status 3 where the package is not there.

Usage: triton_server.py [--listen HOST:PORT] [--device cuda|cpu] [--instances N] [--most-rows N] [--dtype bf16|f32] [--port-file FILE]
"""

import argparse
import contextlib
import importlib.util
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time

NOT_FOUND = 3
SHARED_MEMORY_BYTES = 256 << 20  # of each instance: a request of 64 MiB and its response
POOLED_REQUESTS = 256
CONFIGURATION = """
name: "rms_norm"
backend: "python"
max_batch_size: {most_rows}
input {{ name: "x" data_type: TYPE_{dtype} dims: [-1] }}
output {{ name: "y" data_type: TYPE_{dtype} dims: [-1] }}
dynamic_batching {{ }}
instance_group {{ count: {instances} kind: {kind} }}
parameters {{ key: "eps" value {{ string_value: "1e-6" }} }}
"""


def pytriton_folder():
    """Where the package is, None where it is not; it is not imported."""
    found = importlib.util.find_spec("pytriton")
    return pathlib.Path(found.origin).parent if found else None


def write_repository(folder, options):
    """The model repository of one model."""
    model = folder / "models" / "rms_norm"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(CONFIGURATION.format(
        most_rows=options.most_rows, dtype={"bf16": "BF16", "f32": "FP32"}[options.dtype], instances=options.instances,
        kind="KIND_GPU" if options.device == "cuda" else "KIND_CPU"))
    shutil.copy(pathlib.Path(__file__).with_name("triton_model.py"), model / "1" / "model.py")
    return folder / "models"


def write_backends(folder, package):
    """The Python backend with the stub of this Python, which the package keeps elsewhere."""
    server = package / "tritonserver"
    backend = folder / "backends" / "python"
    shutil.copytree(server / "backends" / "python", backend)
    version = "{}.{}".format(*sys.version_info)
    shutil.copy(server / "python_backend_stubs" / version / "triton_python_backend_stub", backend)
    return folder / "backends"


def environment(package):
    """Of the server. Its models run in processes that find this interpreter's packages by PATH, and its library as given here."""
    libraries = [os.environ.get("LD_LIBRARY_PATH"), str(package.parent / "nvidia_pytriton.libs"), sysconfig.get_config_var("LIBDIR")]
    return dict(os.environ, LD_LIBRARY_PATH=os.pathsep.join(filter(None, libraries)),
                PATH=os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]))


def free_port(host):
    """One that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def await_ready(process, address):
    """The server's version; RuntimeError where it ends instead."""
    import tritonclient.grpc
    with contextlib.closing(tritonclient.grpc.InferenceServerClient(address)) as client:
        while True:
            if process.poll() is not None:
                raise RuntimeError(f"tritonserver ended with {process.returncode} before it was ready")
            with contextlib.suppress(tritonclient.grpc.InferenceServerException):
                if client.is_server_ready(client_timeout=1):
                    return client.get_server_metadata().version
            time.sleep(0.1)


def serve(package, folder, options):
    """Until a signal comes, or the server ends; its exit status."""
    host, _, port = options.listen.rpartition(":")
    port = int(port) or free_port(host)
    process = subprocess.Popen([
        str(package / "tritonserver" / "bin" / "tritonserver"), f"--model-repository={write_repository(folder, options)}",
        f"--backend-directory={write_backends(folder, package)}", f"--grpc-address={host}", f"--grpc-port={port}",
        f"--grpc-infer-allocation-pool-size={POOLED_REQUESTS}", "--allow-http=false", "--allow-metrics=false", "--log-info=false",
        "--disable-auto-complete-config", "--exit-timeout-secs=5", f"--backend-config=python,shm-default-byte-size={SHARED_MEMORY_BYTES}",
    ], env=environment(package))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: process.terminate())
    try:
        version = await_ready(process, f"{host}:{port}")
        if options.port_file:
            unfinished = pathlib.Path(options.port_file + ".unfinished")
            unfinished.write_text(f"grpc={host}:{port}\nversion={version}\n")
            unfinished.rename(options.port_file)
        print(f"ready grpc={host}:{port} version={version}", flush=True)
        return process.wait()
    finally:
        process.terminate()
        process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--listen", default="127.0.0.1:8473")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--instances", type=int, default=4, help="processes that hold the model [4]")
    parser.add_argument("--most-rows", type=int, default=8192, help="of a batch, and of a request [8192]")
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "f32"))
    parser.add_argument("--port-file", help="written when ready: grpc=host:port, version=...")
    options = parser.parse_args()
    package = pytriton_folder()
    if package is None:
        print("triton_server.py: no module pytriton: pip install nvidia-pytriton", file=sys.stderr)
        return NOT_FOUND
    try:
        with tempfile.TemporaryDirectory() as folder:
            return serve(package, pathlib.Path(folder), options)
    except RuntimeError as problem:
        print(f"triton_server.py: {problem}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
