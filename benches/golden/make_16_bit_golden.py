#!/usr/bin/env python3
"""Golden runs in bfloat16 and in fp16 with fp32 master weights: the GPT of `make_golden.py`, from the same
weights and tokens, with the casts that shardloom's trainer makes.

    make_16_bit_golden.py            makes the files again
    make_16_bit_golden.py --check    trains again and compares

Parameters, activations and all gradients have 16 bits; AdamW updates fp32 copies of the parameters, which are
then rounded. Runs:

- `operators`: each operator of the graph widens what it reads, computes in fp32 and rounds what it writes
  once, forward and backward. Autograd does the same to gradients where a tensor is widened or rounded. What
  several operators add to one gradient is rounded after each.
- `modules`, in bfloat16: PyTorch's own operators on the processor, as a model after `.bfloat16()` runs them.

In fp16 PyTorch's `GradScaler` scales the loss, from a scale on with which gradients overflow and growing so
often that they do again. Where they do the norm is null.
"""

import argparse
import json
import math
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import make_golden
from make_golden import ADAMW, EPSILON, GOLDEN, HEAD_DIM, HIDDEN, LAYERS, SEQ, VOCAB

# By format, what the last bit of a number is worth at most, as a share of the number.
TOLERANCE = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
SCALE = {"initial": 2.0**24, "growth_interval": 4}


def rounded(function, first, *others):
    """One operator: fp32 inside, rounded once."""
    widened = (tensor.float() for tensor in (first, *others))
    return function(*widened).to(first.dtype)


def layer_norm(x, gain, bias):
    return F.layer_norm(x, [HIDDEN], gain, bias, EPSILON)


def probabilities(q, k):
    scores = torch.einsum("bshd,bthd->bhst", q, k) / math.sqrt(HEAD_DIM)
    future = torch.ones(SEQ, SEQ, dtype=torch.bool).triu(1)
    return scores.masked_fill(future, -math.inf).softmax(-1)


def operators_loss(p, tokens, targets):
    """Mean cross-entropy over all tokens, operator by operator as in `crates/graph/src/families/gpt.rs`."""
    x = rounded(lambda table: table[tokens], p["embedding.token"])
    x = rounded(lambda x, table: x + table, x, p["embedding.position"])
    for layer in range(LAYERS):
        at = f"block.{layer}."

        def project(which, x, at=at):
            weight, bias = (p[f"{at}attention.{which}.{name}"] for name in ("weight", "bias"))
            product = lambda x, w, b: torch.einsum("bsm,mhd->bshd", x, w) + b
            return rounded(product, x, weight, bias)

        normed = rounded(layer_norm, x, p[at + "attention_norm.gain"], p[at + "attention_norm.bias"])
        q, k, v = (project(which, normed) for which in ("query", "key", "value"))
        probs = rounded(probabilities, q, k)
        context = rounded(lambda p, v: torch.einsum("bhst,bthd->bshd", p, v), probs, v)
        product = lambda x, w: torch.einsum("bshd,hdm->bsm", x, w)
        out = rounded(product, context, p[at + "attention.output.weight"])
        x = rounded(lambda x, b, r: x + b + r, out, p[at + "attention.output.bias"], x)
        normed = rounded(layer_norm, x, p[at + "ffn_norm.gain"], p[at + "ffn_norm.bias"])
        linear = lambda x, w, b: x @ w + b
        up = rounded(linear, normed, p[at + "ffn.up.weight"], p[at + "ffn.up.bias"])
        active = rounded(lambda x: F.gelu(x, approximate="tanh"), up)
        down = rounded(lambda x, w: x @ w, active, p[at + "ffn.down.weight"])
        x = rounded(lambda x, b, r: x + b + r, down, p[at + "ffn.down.bias"], x)
    x = rounded(layer_norm, x, p["final_norm.gain"], p["final_norm.bias"])
    logits = rounded(lambda x, w: x @ w.T, x, p["head.weight"])
    return F.cross_entropy(logits.float().reshape(-1, VOCAB), targets.reshape(-1))


def train(loss_of, initial, tokens, dtype):
    """Losses, gradient norms before clipping and, in fp16, scales of the loss of all steps."""
    masters = {name: weight.clone().requires_grad_() for name, weight in initial.items()}
    weights = {name: weight.to(dtype).requires_grad_() for name, weight in initial.items()}
    optimizer = make_golden.adamw(masters)
    interval = SCALE["growth_interval"]
    scaler = torch.amp.GradScaler(
        "cpu", SCALE["initial"], growth_interval=interval, enabled=dtype == torch.float16
    )
    losses, norms, scales = [], [], []
    for inputs, targets in zip(tokens["inputs"], tokens["targets"], strict=True):
        loss = loss_of(weights, torch.tensor(inputs), torch.tensor(targets))
        scales.append(scaler.get_scale())
        scaler.scale(loss).backward()
        for name, master in masters.items():
            master.grad = weights[name].grad.float()
            weights[name].grad = None
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(masters.values(), ADAMW["clip_norm"])
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            for name, master in masters.items():
                weights[name].copy_(master)
        losses.append(loss.item())
        norms.append(norm.item() if norm.isfinite() else None)
    found = {"losses": losses, "gradient_norms": norms}
    return {**found, "scales": scales} if scaler.is_enabled() else found


def golden(dtype):
    tokens = json.loads((GOLDEN / "tokens.json").read_text())
    initial = load_file(GOLDEN / "gpt" / "initial.safetensors")
    settings = {
        "model": make_golden.MODELS["gpt"][0],
        "made_with": f"torch {torch.__version__}",
        "settings": ADAMW,
    }
    operators = train(operators_loss, initial, tokens, dtype)
    if dtype == torch.float16:
        return {**settings, "loss_scale": SCALE, "operators": operators}
    modules_loss = lambda p, tokens, targets: make_golden.gpt_loss(p, tokens, targets).float()
    modules = train(modules_loss, initial, tokens, dtype)
    return {**settings, "operators": operators, "modules": modules}


def differences(found, expected):
    """The largest relative differences of losses and of norms."""
    difference = lambda a, b: float(a != b) if None in (a, b) else abs(a - b) / b
    return {
        key: max(difference(a, b) for a, b in zip(found[key], expected[key], strict=True))
        for key in found
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for folder, dtype in [("gpt-bf16", torch.bfloat16), ("gpt-fp16", torch.float16)]:
        computed, path = golden(dtype), GOLDEN / folder / "losses.json"
        if not arguments.check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(computed, indent=1) + "\n")
            continue
        stored = json.loads(path.read_text())
        for run in ("operators", "modules"):
            if run not in computed:
                continue
            found = differences(computed[run], stored[run])
            print(folder, run, "differ from the file by", found)
            if max(found.values()) > TOLERANCE[dtype]:
                sys.exit("the golden file differs from what this PyTorch computes")


if __name__ == "__main__":
    main()
