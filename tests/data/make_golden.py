#!/usr/bin/env python3
"""Computes golden outputs and gradients with PyTorch in float64 and writes golden.safetensors and manifest.json.

Every case decodes the exact values that the client sends to float64, computes y with PyTorch (torch.nn.functional where it
has the op, the formula of arXiv:1910.07467 for RMSNorm), and gradients by autograd. Goldens are stored rounded once to the
dtype of the output. Needs numpy and PyTorch (Debian: python3-numpy, python3-torch).
"""

import json
import pathlib
import struct

import numpy as np
import torch

HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = "golden.safetensors"
TORCH_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
SAFETENSORS_DTYPES = {value: key for key, value in TORCH_DTYPES.items()}
SHORT_NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.float64: "f64"}


def read_safetensors(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] not in TORCH_DTYPES:
            continue
        begin, end = entry["data_offsets"]
        raw = bytearray(data[8 + length + begin : 8 + length + end])
        tensors[name] = torch.frombuffer(raw, dtype=TORCH_DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def raw_bytes(tensor):
    tensor = tensor.detach().contiguous()
    return tensor.view(torch.int16).numpy().tobytes() if tensor.element_size() == 2 else tensor.numpy().tobytes()


def write_safetensors(path, tensors):
    header, blobs, offset = {}, [], 0
    for name, tensor in tensors.items():
        blob = raw_bytes(tensor)
        header[name] = {
            "dtype": SAFETENSORS_DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + len(blob)],
        }
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


class Golden:
    """Collects tensors of golden.safetensors and cases of manifest.json."""

    def __init__(self):
        self.tensors = {}
        self.cases = []
        self.by_content = {}

    def store(self, name, tensor):
        """Stores a tensor once per content; returns its reference."""
        key = (tensor.dtype, tuple(tensor.shape), raw_bytes(tensor))
        if key not in self.by_content:
            self.tensors[name] = tensor.detach().contiguous()
            self.by_content[key] = f"{GOLDEN}:{name}"
        return self.by_content[key]

    def add(self, name, op, direction, options, inputs, outputs):
        """outputs: name -> (float64 value, dtype of the output, tolerance)."""
        case = {"name": name, "op": op, "direction": direction, "options": options, "inputs": inputs, "outputs": {}}
        for output, (value, dtype, tolerance) in outputs.items():
            tolerance = dict(tolerance)
            if "terms" in tolerance:
                terms = tolerance.pop("terms").to(torch.float32)
                tolerance["scale"] = self.store(f"{name}.{output}.terms", terms)
            case["outputs"][output] = {
                "golden": self.store(f"{name}.{output}", value.to(dtype)),
                "tolerance": tolerance,
            }
        self.cases.append(case)


# Tolerances: |error| <= relative * a scale. `of` names the scale of an element: "value" max(1, |golden|), "element" |golden|,
# "row" the largest |golden| of its row (last dimension), "channel" the largest |golden| of its channel, "scale" the element
# of the tensor `scale`: the sum of the absolute terms of a reduction. `ulps` allows so many units in the last place of the
# golden on top, for outputs of 16 bits.
def value_tolerance(dtype):
    if dtype == torch.float64:
        return {"relative": 1e-13, "of": "value"}
    if dtype == torch.float32:
        return {"relative": 5e-6, "of": "value"}
    return {"relative": 0.0, "of": "value", "ulps": 1}


def row_tolerance(dtype):
    if dtype == torch.float64:
        return {"relative": 1e-13, "of": "row"}
    tolerance = {"relative": 5e-6, "of": "row"}
    return tolerance if dtype == torch.float32 else {**tolerance, "ulps": 1}


def terms_tolerance(dtype, terms):
    tolerance = {"relative": 1e-14 if dtype == torch.float64 else 1e-6, "of": "scale", "terms": terms}
    return tolerance if dtype in (torch.float32, torch.float64) else {**tolerance, "ulps": 1}


def statistics_dtype(dtype):
    return torch.float64 if dtype == torch.float64 else torch.float32


def output_gradient(shape, dtype, seed):
    """A gradient that is not symmetric around zero, so that forgotten mean terms show."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) + 0.25).to(dtype)


def normalize_rows(op, x, weight, bias, eps, weight_offset):
    if op == "layer_norm":
        return torch.nn.functional.layer_norm(x, (x.shape[-1],), weight, bias, eps)
    rstd = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return x * rstd * (1.0 if weight is None else weight + weight_offset)


def row_statistics(op, x, eps):
    if op == "layer_norm":
        mean = x.mean(-1)
        return mean, torch.rsqrt(x.var(-1, unbiased=False) + eps)
    return None, torch.rsqrt(x.pow(2).mean(-1) + eps)


def row_cases(golden, op, label, refs, tensors, eps, weight_offset=0.0):
    """Forward and backward of a row op. refs: input name -> file reference; tensors: the values behind them."""
    x = tensors["x"]
    dtype, options = x.dtype, {"eps": eps}
    if weight_offset:
        options["weight_offset"] = weight_offset
    wide = {name: tensor.double() for name, tensor in tensors.items()}
    weight, bias, residual = (wide.get(name) for name in ("weight", "bias", "residual"))
    total = wide["x"]
    outputs = {}
    if residual is not None:
        total = (wide["x"] + residual).to(dtype).double()  # the sum is rounded to the dtype of x before it is normalized
        outputs["residual_sum"] = (total, dtype, {"relative": 0.0, "of": "value", "ulps": 0})
    total = total.clone().requires_grad_()
    parameters = [p.requires_grad_() for p in (weight, bias) if p is not None]
    y = normalize_rows(op, total, weight, bias, eps, weight_offset)
    mean, rstd = row_statistics(op, total, eps)
    outputs["y"] = (y, dtype, value_tolerance(dtype))
    if mean is not None:
        outputs["mean"] = (mean, statistics_dtype(dtype), value_tolerance(statistics_dtype(dtype)))
    relative = 1e-13 if dtype == torch.float64 else 1e-6
    outputs["rstd"] = (rstd, statistics_dtype(dtype), {"relative": relative, "of": "element"})
    name = f"{op}_{label}"
    golden.add(f"{name}_forward", op, "forward", options, refs, outputs)

    dy = output_gradient(y.shape, dtype, seed=7)
    gradients = torch.autograd.grad(y, [total, *parameters], dy.double())
    normalized = (total - (0 if mean is None else mean[..., None])) * rstd[..., None]
    backward_refs = {"dy": golden.store(f"dy_{SHORT_NAMES[dtype]}", dy)}
    if residual is None:
        backward_refs["x"] = refs["x"]
    else:
        backward_refs["x"] = golden.store(f"{name}.sum", total.to(dtype))
    backward_outputs = {"dx": (gradients[0], dtype, row_tolerance(dtype))}
    if weight is not None:
        backward_refs["weight"] = refs["weight"]
        terms = (dy.double() * normalized).abs().sum(0)
        backward_outputs["dweight"] = (gradients[1], tensors["weight"].dtype, terms_tolerance(tensors["weight"].dtype, terms))
    if bias is not None:
        terms = dy.double().abs().sum(0)
        backward_outputs["dbias"] = (gradients[2], tensors["weight"].dtype, terms_tolerance(tensors["weight"].dtype, terms))
    golden.add(f"{name}_backward", op, "backward", options, backward_refs, backward_outputs)


def batch_cases(golden, label, mode, ref, x, layout):
    """Forward and backward of BatchNorm; x is given in NCHW order, `ref` is its file in `layout`."""
    channels, eps, momentum, dtype = x.shape[1], 1e-5, 0.1, x.dtype
    generator = torch.Generator().manual_seed(11)
    weight = torch.rand(channels, generator=generator, dtype=torch.float64).add(0.5).float()
    bias = torch.randn(channels, generator=generator, dtype=torch.float64).float()
    running_mean = torch.full((channels,), 5.0)
    running_var = torch.full((channels,), 36.0)
    refs = {
        "x": ref,
        "weight": golden.store(f"bn_weight_{channels}", weight),
        "bias": golden.store(f"bn_bias_{channels}", bias),
        "running_mean": golden.store(f"bn_running_mean_{channels}", running_mean),
        "running_var": golden.store(f"bn_running_var_{channels}", running_var),
    }
    options = {"eps": eps, "mode": mode, "layout": layout, "momentum": momentum}
    training = mode == "training"
    wide_x = x.double().requires_grad_()
    wide_weight, wide_bias = weight.double().requires_grad_(), bias.double().requires_grad_()
    new_mean, new_var = running_mean.double().clone(), running_var.double().clone()
    y = torch.nn.functional.batch_norm(wide_x, new_mean, new_var, wide_weight, wide_bias, training, momentum, eps)
    axes = [axis for axis in range(x.dim()) if axis != 1]
    shape = [-1 if axis == 1 else 1 for axis in range(x.dim())]
    mean = wide_x.mean(axes) if training else running_mean.double()
    var = wide_x.var(axes, unbiased=False) if training else running_var.double()
    rstd = torch.rsqrt(var + eps)

    def ordered(tensor):
        return tensor.movedim(1, -1).contiguous() if layout == "nhwc" else tensor

    outputs = {"y": (ordered(y), dtype, value_tolerance(dtype))}
    if training:
        outputs["mean"] = (mean, torch.float32, value_tolerance(torch.float32))
        outputs["rstd"] = (rstd, torch.float32, {"relative": 1e-6, "of": "element"})
        outputs["running_mean"] = (new_mean, torch.float32, value_tolerance(torch.float32))
        outputs["running_var"] = (new_var, torch.float32, value_tolerance(torch.float32))
    name = f"batch_norm_{label}_{mode}"
    golden.add(f"{name}_forward", "batch_norm", "forward", options, refs, outputs)

    dy = output_gradient(x.shape, dtype, seed=13)
    dx, dweight, dbias = torch.autograd.grad(y, [wide_x, wide_weight, wide_bias], dy.double())
    normalized = (wide_x - mean.reshape(shape)) * rstd.reshape(shape)
    backward_refs = {"dy": golden.store(f"{name}.dy", ordered(dy)), "x": ref, "weight": refs["weight"]}
    if not training:
        backward_refs.update({key: refs[key] for key in ("running_mean", "running_var")})
    options = {key: options[key] for key in ("eps", "mode", "layout")}
    golden.add(
        f"{name}_backward",
        "batch_norm",
        "backward",
        options,
        backward_refs,
        {
            "dx": (ordered(dx), dtype, {"relative": 5e-6, "of": "channel"}),
            "dweight": (dweight, torch.float32, terms_tolerance(torch.float32, (dy.double() * normalized).abs().sum(axes))),
            "dbias": (dbias, torch.float32, terms_tolerance(torch.float32, dy.double().abs().sum(axes))),
        },
    )


def main():
    golden = Golden()
    source = "embeddings.safetensors"
    real = read_safetensors(HERE / source)

    def pick(**names):
        refs = {key: f"{source}:{name}" for key, name in names.items()}
        return refs, {key: real[name] for key, name in names.items()}

    eps = 1e-12  # the model's layer_norm_eps
    row_cases(golden, "layer_norm", "f32", *pick(x="x", weight="weight", bias="bias"), eps)
    row_cases(golden, "layer_norm", "bf16", *pick(x="x_bf16", weight="weight_bf16", bias="bias_bf16"), eps)
    row_cases(golden, "layer_norm", "f16_weight_f32", *pick(x="x_f16", weight="weight", bias="bias"), eps)
    row_cases(golden, "rms_norm", "f32", *pick(x="x", weight="weight"), 1e-6)
    row_cases(golden, "rms_norm", "bf16_weight_f32", *pick(x="x_bf16", weight="weight"), 1e-6)
    row_cases(golden, "rms_norm", "f16", *pick(x="x_f16"), 1e-6)
    row_cases(golden, "rms_norm", "f32_offset", *pick(x="x", weight="weight"), 1e-6, weight_offset=1.0)

    # A residual: the same tokens in reverse order, as another layer's output would arrive.
    for op, suffix in (("layer_norm", ""), ("rms_norm", "_bf16")):
        names = {"x": "x" + suffix, "weight": "weight" + suffix}
        if op == "layer_norm":
            names["bias"] = "bias"
        refs, tensors = pick(**names)
        residual = tensors["x"].flip(0)
        refs["residual"] = golden.store(f"residual{suffix}", residual)
        row_cases(golden, op, f"residual{suffix or '_f32'}", refs, {**tensors, "residual": residual}, 1e-5)

    # float64 on eight rows: the precision of the f64 path itself.
    rows = real["x"][:8].double()
    refs = {"x": golden.store("x_f64", rows), "weight": golden.store("weight_f64", real["weight"].double())}
    row_cases(golden, "rms_norm", "f64", refs, {"x": rows, "weight": real["weight"].double()}, 1e-6)

    flat = torch.from_numpy(np.load(HERE / "digits_nc.npy"))
    images = torch.from_numpy(np.load(HERE / "digits_nchw.npy"))
    for mode in ("training", "inference"):
        batch_cases(golden, "digits_nc", mode, "digits_nc.npy", flat, "nchw")
        batch_cases(golden, "digits_nchw", mode, "digits_nchw.npy", images, "nchw")
    # The same images as eight channels (one per image row): NHWC against NCHW with more than one channel.
    rows_as_channels = images[:, 0].contiguous()
    ref = golden.store("digits_nlc", rows_as_channels.movedim(1, -1).contiguous())
    batch_cases(golden, "digits_nlc", "training", ref, rows_as_channels, "nhwc")

    write_safetensors(HERE / GOLDEN, golden.tensors)
    (HERE / "manifest.json").write_text(json.dumps({"cases": golden.cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
