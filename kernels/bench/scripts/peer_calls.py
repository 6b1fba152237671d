"""What each peer library calls for a case of the suite, and a check of its results. Needs PyTorch."""

import importlib.util

import torch
import torch.nn.functional as F

EPS = 1e-5
MOMENTUM = 0.1
Y_SCALE = 0.02  # as normbench's
QUANTIZED = ("fp8", "fp8_row", "int8")
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


class NotRun(Exception):
    """The peer has nothing for this case; the message says why."""


class Inputs:
    """Random tensors of a case, on the GPU, in PyTorch's shapes and memory formats."""

    def __init__(self, case):
        self.case = case
        dtype, weight_dtype = DTYPES[case["dtype"]], DTYPES[case["weight_dtype"]]
        shape = case["shape"]
        parameters = shape[1]
        generator = torch.Generator("cuda").manual_seed(1)

        def normal(size, kind, scale=1.0, offset=0.0):
            tensor = torch.empty(size, dtype=kind, device="cuda")
            tensor.normal_(offset, scale, generator=generator)
            return tensor

        def as_layout(tensor):
            return tensor.contiguous(memory_format=torch.channels_last) if case["layout"] == "nhwc" else tensor

        self.backward = case["direction"] == "backward"
        self.x = as_layout(normal(shape, dtype, 1.0, 0.25))
        self.weight = normal(parameters, weight_dtype, 0.25, 1.0)
        self.bias = None if case["op"] == "rms_norm" else normal(parameters, weight_dtype, 0.5)
        self.residual = normal(shape, dtype) if case["variant"] == "residual" else None
        self.dy = as_layout(normal(shape, dtype, 1.0, 0.125)) if self.backward else None
        self.dsum = normal(shape, dtype) if self.backward and self.residual is not None else None
        self.running_mean = self.running_var = None
        if case["op"] == "batch_norm":
            self.running_mean = normal(parameters, torch.float32, 0.25)
            self.running_var = normal(parameters, torch.float32, 0.05, 1.0)
        if self.backward:
            for tensor in (self.x, self.weight, self.bias):
                if tensor is not None:
                    tensor.requires_grad_(True)


def torch_forward(case):
    """What PyTorch's own ops make of a case; eager and compiled use the same."""
    hidden_size = (case["shape"][1],)
    if case["op"] == "batch_norm":
        training = case["direction"] != "inference"

        def batch_norm(x, weight, bias, residual, running_mean, running_var):
            return F.batch_norm(x, running_mean, running_var, weight, bias, training, MOMENTUM, EPS)

        return batch_norm
    if case["op"] == "rms_norm":

        def norm(x, weight, bias):
            return F.rms_norm(x, hidden_size, weight, EPS)
    else:

        def norm(x, weight, bias):
            return F.layer_norm(x, hidden_size, weight, bias, EPS)

    def quantized(y):
        """One byte an element, as the variants say."""
        if case["variant"] == "fp8":
            return (y * (1.0 / Y_SCALE)).to(torch.float8_e4m3fn)
        scale = y.abs().amax(1, keepdim=True) / (127.0 if case["variant"] == "int8" else 448.0)
        if case["variant"] == "int8":
            return (y / scale).round().to(torch.int8), scale
        return (y / scale).to(torch.float8_e4m3fn), scale

    def forward(x, weight, bias, residual, running_mean, running_var):
        if case["variant"] in QUANTIZED:
            return quantized(norm(x, weight, bias).float())
        if residual is None:
            return norm(x, weight, bias)
        total = x + residual
        return norm(total, weight, bias), total

    return forward


def compiled_forward(case):
    return torch.compile(torch_forward(case), dynamic=False, fullgraph=True)


def cudnn_forward(case):
    if case["op"] == "batch_norm":
        return torch_forward(case)
    if case["variant"] == "residual":
        raise NotRun("cuDNN is called without a residual")
    if importlib.util.find_spec("cudnn") is None:
        raise NotRun("row norms of cuDNN need the package nvidia-cudnn-frontend")
    from cudnn_rows import CudnnRowNorm

    return CudnnRowNorm(case)


def liger_forward(case):
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    if case["op"] == "batch_norm":
        raise NotRun("Liger has no BatchNorm")
    if case["variant"] == "residual":
        if case["op"] == "layer_norm":
            raise NotRun("Liger fuses a residual only into RMSNorm")
        from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction

        return lambda x, weight, bias, residual, *_: tuple(
            LigerFusedAddRMSNormFunction.apply(x, residual, weight, EPS, 0.0, "none", False))
    if case["op"] == "layer_norm":
        return lambda x, weight, bias, *_: LigerLayerNormFunction.apply(x, weight, bias, EPS)
    return lambda x, weight, bias, *_: LigerRMSNormFunction.apply(x, weight, EPS, 0.0, "none", False)


def quack_forward(case):
    from quack.rmsnorm import layernorm_fwd, rmsnorm

    if case["op"] == "batch_norm":
        raise NotRun("QuACK has no BatchNorm")
    if case["op"] == "layer_norm":
        if case["direction"] == "backward" or case["variant"] == "residual":
            raise NotRun("QuACK's LayerNorm is called for plain forwards only")
        if case["weight_dtype"] != "f32":
            raise NotRun("QuACK's LayerNorm takes f32 weights")
        return lambda x, weight, bias, *_: layernorm_fwd(x, weight, bias, eps=EPS)
    if case["variant"] == "residual":
        return lambda x, weight, bias, residual, *_: rmsnorm(x, weight, residual=residual, eps=EPS, prenorm=True)
    return lambda x, weight, *_: rmsnorm(x, weight, eps=EPS)


FORWARDS = {"torch": torch_forward, "cudnn": cudnn_forward, "liger": liger_forward, "quack": quack_forward,
            "torch_compile": compiled_forward}


def forward_of(impl, case):
    """A function of a case's tensors; NotRun where the library has none. Compiled when first called."""
    if case["variant"] in QUANTIZED and impl not in ("torch", "torch_compile"):
        raise NotRun("no quantized outputs")
    return FORWARDS[impl](case)


def call_of(impl, forward, inputs):
    """The call to be timed: `forward`, or the gradients of what it computed once."""
    torch.backends.cudnn.enabled = impl == "cudnn"
    if hasattr(forward, "call"):
        return forward.call(inputs)
    if impl == "cudnn":
        chosen = torch._batch_norm_impl_index(
            inputs.x.detach(), inputs.weight, inputs.bias, inputs.running_mean, inputs.running_var,
            inputs.case["direction"] != "inference", MOMENTUM, EPS, True)[4]
        if chosen != 1:
            raise NotRun("PyTorch does not choose cuDNN for this case")
    arguments = (inputs.x, inputs.weight, inputs.bias, inputs.residual, inputs.running_mean, inputs.running_var)
    if not inputs.backward:

        def run():
            with torch.no_grad():
                return forward(*arguments)

        return run
    outputs = forward(*arguments)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    gradients = (inputs.dy,) if inputs.dsum is None else (inputs.dy, inputs.dsum)
    wanted = [tensor for tensor in (inputs.x, inputs.weight, inputs.bias) if tensor is not None]
    return lambda: torch.autograd.grad(outputs, wanted, gradients, retain_graph=True)


def check(inputs, results):
    """AssertionError where a result is far from float64, on some rows or channels."""
    case = inputs.case
    result = results[0] if isinstance(results, (tuple, list)) else results
    if case["variant"] in QUANTIZED:
        result = result.float() * (Y_SCALE if case["variant"] == "fp8" else results[1])
    part = (slice(None), slice(0, 4)) if case["op"] == "batch_norm" else (slice(0, 16),)
    parameters = slice(0, 4) if case["op"] == "batch_norm" else slice(None)
    with torch.enable_grad():
        x = inputs.x.detach()[part].double().requires_grad_(inputs.backward)
        weight = inputs.weight.detach()[parameters].double()
        bias = None if inputs.bias is None else inputs.bias.detach()[parameters].double()
        total = x
        if inputs.residual is not None:
            total = (x + inputs.residual[part].double()).to(inputs.x.dtype).double() if not inputs.backward else (
                x + inputs.residual[part].double())
        if case["op"] == "batch_norm":
            running = (inputs.running_mean[parameters].double(), inputs.running_var[parameters].double())
            training = case["direction"] != "inference"
            if not training:
                expected = F.batch_norm(x, *running, weight, bias, False, MOMENTUM, EPS)
            else:
                expected = F.batch_norm(x, None, None, weight, bias, True, MOMENTUM, EPS)
        elif case["op"] == "rms_norm":
            expected = F.rms_norm(total, (case["shape"][1],), weight, EPS)
        else:
            expected = F.layer_norm(total, (case["shape"][1],), weight, bias, EPS)
        if inputs.backward:
            expected, = torch.autograd.grad(expected, x, inputs.dy[part].double())
            if inputs.dsum is not None:
                expected = expected + inputs.dsum[part].double()
    error = (result.detach()[part].double() - expected).norm() / expected.norm()
    allowed = 1e-4 if case["dtype"] == "f32" else 2e-2
    if case["variant"] in QUANTIZED:
        allowed = 6e-2
    if not error.item() <= allowed:
        raise AssertionError(f"relative error {error.item():.3g}")
