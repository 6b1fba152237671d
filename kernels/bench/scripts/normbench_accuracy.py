#!/usr/bin/env python3
"""Float32 errors of normd and of PyTorch against one float64 oracle. Usage: normbench_accuracy.py MANIFEST [--remove]

`normbench accuracy` writes MANIFEST: inputs and this library's results, case by case. PyTorch runs its eager ops on the same
inputs on the GPU; the oracle is written out below in float64. An error counts against the largest magnitude that the output
has in its row, channel or column (of the terms it sums, for gradients of parameters).
"""

import json
import os
import pathlib
import shutil
import sys

# Where both are within rounding of the true value, which is nearer is chance.
ROUNDING = 2.0**-24
WORSE_RMS = 1.02
WORSE_MAX = 1.25


def load(torch, case):
    shape = case["shape"]
    layout = case["layout"]
    tensors = {}
    for name, path in case["files"].items():
        flat = torch.frombuffer(bytearray(pathlib.Path(path).read_bytes()), dtype=torch.float32).cuda()
        if flat.numel() == shape[1] and name not in ("x", "dy", "y", "dx"):
            tensors[name] = flat
        elif layout == "nhwc":
            batch, channels, *spatial = shape
            tensors[name] = flat.view(batch, *spatial, channels).movedim(-1, 1)
        else:
            tensors[name] = flat.view(shape)
    return tensors


def oracle(torch, case, t):
    """Outputs in float64 and, beside each, the magnitude that its error is measured by."""
    double = {name: tensor.double() for name, tensor in t.items()}
    x, weight, eps = double["x"], double["weight"], case["eps"]
    batch = case["op"] == "batch_norm"
    over = tuple(d for d in range(x.dim()) if d != 1) if batch else (1,)
    across = over if batch else (0,)
    view = [1] * x.dim()
    view[1] = -1
    weight = weight.view(view)
    mean = torch.zeros_like(x.mean(over, keepdim=True)) if case["op"] == "rms_norm" else x.mean(over, keepdim=True)
    variance = ((x - mean) ** 2).mean(over, keepdim=True)
    count = x.numel() // mean.numel()
    if case["direction"] == "inference":
        mean, variance = double["running_mean"].view(view), double["running_var"].view(view)
    rstd = 1.0 / torch.sqrt(variance + eps)
    normalized = (x - mean) * rstd
    if case["direction"] != "backward":
        bias = double["bias"].view(view) if "bias" in double else torch.zeros((), dtype=x.dtype, device=x.device)
        y = normalized * weight + bias
        outputs = {"y": (y, y.abs().amax(over, keepdim=True))}
        if "new_running_mean" in double:
            keep = 1.0 - case["momentum"]
            outputs["new_running_mean"] = (keep * double["running_mean"] + case["momentum"] * mean.flatten(), None)
            outputs["new_running_var"] = (
                keep * double["running_var"] + case["momentum"] * variance.flatten() * count / (count - 1), None)
        return outputs
    dy = double["dy"]
    g = dy if batch else dy * weight
    mean_g = torch.zeros_like(mean) if case["op"] == "rms_norm" else g.mean(over, keepdim=True)
    dx = rstd * (g - mean_g - normalized * (g * normalized).mean(over, keepdim=True))
    if batch:
        dx = dx * weight
    terms = dy * normalized
    outputs = {"dx": (dx, dx.abs().amax(over, keepdim=True)), "dweight": (terms.sum(across), terms.abs().sum(across))}
    if "dbias" in double:
        outputs["dbias"] = (dy.sum(across), dy.abs().sum(across))
    return outputs


def pytorch(torch, case, t):
    """The same outputs from PyTorch's eager ops in float32."""
    F = torch.nn.functional
    backward = case["direction"] == "backward"
    x, weight = t["x"].clone(memory_format=torch.preserve_format), t["weight"].clone()
    bias = t["bias"].clone() if "bias" in t else (torch.zeros_like(weight) if case["op"] != "rms_norm" else None)
    if backward:
        for tensor in (x, weight, bias):
            if tensor is not None:
                tensor.requires_grad_(True)
    outputs = {}
    if case["op"] == "batch_norm":
        running = [t[name].clone() if name in t else None for name in ("running_mean", "running_var")]
        y = F.batch_norm(x, *running, weight, bias, case["direction"] != "inference", case["momentum"], case["eps"])
        if "new_running_mean" in t:
            outputs["new_running_mean"], outputs["new_running_var"] = running
    elif case["op"] == "rms_norm":
        y = F.rms_norm(x, (case["shape"][1],), weight, case["eps"])
    else:
        y = F.layer_norm(x, (case["shape"][1],), weight, bias, case["eps"])
    if not backward:
        return {"y": y, **outputs}
    wanted = [tensor for tensor in (x, weight, bias) if tensor is not None]
    gradients = torch.autograd.grad(y, wanted, t["dy"])
    return dict(zip(("dx", "dweight", "dbias"), gradients))


def errors(torch, got, want, scale):
    scale = want.abs().clamp_min(1e-30) if scale is None else scale.clamp_min(1e-30)
    relative = ((got.double() - want) / scale).abs()
    if not torch.isfinite(relative).all():
        return float("inf"), float("inf")
    return relative.max().item(), relative.pow(2).mean().sqrt().item()


def main(arguments):
    remove = "--remove" in arguments
    paths = [argument for argument in arguments if argument != "--remove"]
    if len(paths) != 1:
        sys.exit(__doc__.splitlines()[0])
    try:
        import torch
    except ImportError as error:
        sys.exit(f"normbench accuracy: PyTorch is needed ({error})")
    if not torch.cuda.is_available():
        sys.exit("normbench accuracy: PyTorch sees no CUDA device")
    manifest = json.loads(pathlib.Path(paths[0]).read_text())
    worse = 0
    print(f"{'float32, errors over the magnitude':<46}"
          f"{'output':>18}{'normd max':>12}{'torch max':>12}{'normd rms':>12}{'torch rms':>12}")
    for case in manifest:
        t = load(torch, case)
        expected, theirs = oracle(torch, case, t), pytorch(torch, case, t)
        for name, (want, scale) in expected.items():
            our_max, our_rms = errors(torch, t[name], want, scale)
            their_max, their_rms = errors(torch, theirs[name], want, scale)
            bad = our_rms > max(WORSE_RMS * their_rms, ROUNDING) or our_max > max(WORSE_MAX * their_max, 2 * ROUNDING)
            worse += bad
            print(f"{case['name']:<46}{name:>18}{our_max:>12.2e}{their_max:>12.2e}{our_rms:>12.2e}{their_rms:>12.2e}"
                  f"{'  WORSE' if bad else ''}")
    print(f"{len(manifest)} cases, {worse} outputs less accurate than PyTorch's")
    if remove:
        shutil.rmtree(os.path.dirname(os.path.abspath(paths[0])))
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
