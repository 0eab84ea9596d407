#!/usr/bin/env python3
"""Golden training runs: small models trained by plain PyTorch, as oracles for shardloom's trainer.

    make_golden.py            makes every file again
    make_golden.py --check    trains from the files' own weights and tokens and compares the losses

The models repeat, in PyTorch's own operators, what `crates/graph/src/families` describes; parameters
carry the graph's names and shapes. Float32, one thread, deterministic algorithms. Each run is done in
float64 as well: how far the two drift apart is how exactly a float32 trainer can be asked to agree.
"""

import argparse
import json
import math
import pathlib
import random
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "crates/train/tests/golden"
LAYERS, HIDDEN, HEADS, KV_HEADS, LLAMA_FFN, SEQ, VOCAB = 2, 32, 4, 2, 64, 16, 64
HEAD_DIM, GPT_FFN = HIDDEN // HEADS, 4 * HIDDEN
STEPS, GLOBAL_BATCH = 20, 8
EPSILON, ROPE_THETA = 1e-5, 10_000.0
# Float32 drifts by about 1e-7 from float64 here; the subtlest mistakes tried (the exact GELU instead of
# its tanh form, an epsilon of 1e-6, decay of biases) move a loss by 6e-6 or more.
TOLERANCE = 2e-6

ADAMW = {
    "learning_rate": 1e-3,
    "beta1": 0.9,
    "beta2": 0.95,
    "epsilon": 1e-8,
    "weight_decay": 0.1,
    "clip_norm": 1.0,
}
SGD = {"learning_rate": 0.1, "momentum": 0.9}

# Which parameters are matrices, and so decay. The graph counts row axes; here it is spelled out.
DECAYING = ("embedding.token", "embedding.position", ".weight")


def gpt_shapes(tied):
    """Parameter names and shapes of the GPT, as the graph has them."""
    shapes = {"embedding.token": [VOCAB, HIDDEN], "embedding.position": [SEQ, HIDDEN]}
    for layer in range(LAYERS):
        at = f"block.{layer}."
        for norm in ("attention_norm", "ffn_norm"):
            shapes[f"{at}{norm}.gain"] = [HIDDEN]
            shapes[f"{at}{norm}.bias"] = [HIDDEN]
        for which in ("query", "key", "value"):
            shapes[f"{at}attention.{which}.weight"] = [HIDDEN, HEADS, HEAD_DIM]
            shapes[f"{at}attention.{which}.bias"] = [HEADS, HEAD_DIM]
        shapes[f"{at}attention.output.weight"] = [HEADS, HEAD_DIM, HIDDEN]
        shapes[f"{at}attention.output.bias"] = [HIDDEN]
        shapes[f"{at}ffn.up.weight"] = [HIDDEN, GPT_FFN]
        shapes[f"{at}ffn.up.bias"] = [GPT_FFN]
        shapes[f"{at}ffn.down.weight"] = [GPT_FFN, HIDDEN]
        shapes[f"{at}ffn.down.bias"] = [HIDDEN]
    shapes["final_norm.gain"] = [HIDDEN]
    shapes["final_norm.bias"] = [HIDDEN]
    if not tied:
        shapes["head.weight"] = [VOCAB, HIDDEN]
    return shapes


def gpt_loss(p, tokens, targets):
    """Mean cross-entropy over all tokens; a model without `head.weight` is tied."""
    batch = tokens.shape[0]
    x = p["embedding.token"][tokens] + p["embedding.position"]
    for layer in range(LAYERS):
        at = f"block.{layer}."
        gain, bias = p[at + "attention_norm.gain"], p[at + "attention_norm.bias"]
        normed = F.layer_norm(x, [HIDDEN], gain, bias, EPSILON)
        q, k, v = (
            torch.einsum("bsm,mhd->bshd", normed, p[f"{at}attention.{which}.weight"])
            + p[f"{at}attention.{which}.bias"]
            for which in ("query", "key", "value")
        )
        context = causal_attention(q, k, v).reshape(batch, SEQ, HIDDEN)
        output = p[at + "attention.output.weight"].reshape(HIDDEN, HIDDEN)
        x = x + context @ output + p[at + "attention.output.bias"]
        gain, bias = p[at + "ffn_norm.gain"], p[at + "ffn_norm.bias"]
        normed = F.layer_norm(x, [HIDDEN], gain, bias, EPSILON)
        up = normed @ p[at + "ffn.up.weight"] + p[at + "ffn.up.bias"]
        down = F.gelu(up, approximate="tanh") @ p[at + "ffn.down.weight"]
        x = x + down + p[at + "ffn.down.bias"]
    x = F.layer_norm(x, [HIDDEN], p["final_norm.gain"], p["final_norm.bias"], EPSILON)
    logits = x @ p.get("head.weight", p["embedding.token"]).T
    return F.cross_entropy(logits.reshape(-1, VOCAB), targets.reshape(-1))


def llama_shapes():
    """Parameter names and shapes of the Llama. Query head h is (h // group, h % group)."""
    shapes = {"embedding.token": [VOCAB, HIDDEN]}
    query = [KV_HEADS, HEADS // KV_HEADS, HEAD_DIM]
    for layer in range(LAYERS):
        at = f"block.{layer}."
        shapes[at + "attention_norm.gain"] = [HIDDEN]
        shapes[at + "attention.query.weight"] = [HIDDEN, *query]
        shapes[at + "attention.key.weight"] = [HIDDEN, KV_HEADS, HEAD_DIM]
        shapes[at + "attention.value.weight"] = [HIDDEN, KV_HEADS, HEAD_DIM]
        shapes[at + "attention.output.weight"] = [*query, HIDDEN]
        shapes[at + "ffn_norm.gain"] = [HIDDEN]
        shapes[at + "ffn.gate.weight"] = [HIDDEN, LLAMA_FFN]
        shapes[at + "ffn.up.weight"] = [HIDDEN, LLAMA_FFN]
        shapes[at + "ffn.down.weight"] = [LLAMA_FFN, HIDDEN]
    shapes["final_norm.gain"] = [HIDDEN]
    shapes["head.weight"] = [VOCAB, HIDDEN]
    return shapes


def llama_loss(p, tokens, targets):
    """Mean cross-entropy over all tokens."""
    batch = tokens.shape[0]
    x = p["embedding.token"][tokens]
    for layer in range(LAYERS):
        at = f"block.{layer}."
        normed = F.rms_norm(x, [HIDDEN], p[at + "attention_norm.gain"], EPSILON)
        q = normed @ p[at + "attention.query.weight"].reshape(HIDDEN, HEADS * HEAD_DIM)
        k = torch.einsum("bsm,mhd->bshd", normed, p[at + "attention.key.weight"])
        v = torch.einsum("bsm,mhd->bshd", normed, p[at + "attention.value.weight"])
        q, k = rotated(q.reshape(batch, SEQ, HEADS, HEAD_DIM)), rotated(k)
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, dim=2) for t in (k, v))
        context = causal_attention(q, k, v).reshape(batch, SEQ, HEADS * HEAD_DIM)
        x = x + context @ p[at + "attention.output.weight"].reshape(HEADS * HEAD_DIM, HIDDEN)
        normed = F.rms_norm(x, [HIDDEN], p[at + "ffn_norm.gain"], EPSILON)
        gated = F.silu(normed @ p[at + "ffn.gate.weight"]) * (normed @ p[at + "ffn.up.weight"])
        x = x + gated @ p[at + "ffn.down.weight"]
    logits = F.rms_norm(x, [HIDDEN], p["final_norm.gain"], EPSILON) @ p["head.weight"].T
    return F.cross_entropy(logits.reshape(-1, VOCAB), targets.reshape(-1))


def causal_attention(q, k, v):
    """Softmax attention of `[batch, seq, heads, head_dim]`, each position seeing those up to it."""
    scores = torch.einsum("bshd,bthd->bhst", q, k) / math.sqrt(HEAD_DIM)
    future = torch.ones(SEQ, SEQ, dtype=torch.bool).triu(1)
    probs = scores.masked_fill(future, -math.inf).softmax(-1)
    return torch.einsum("bhst,bthd->bshd", probs, v)


def rotated(x):
    """Rotary positions: element j of a head is paired with element j + head_dim / 2."""
    half = HEAD_DIM // 2
    exponents = torch.arange(half, dtype=torch.float64) * 2 / HEAD_DIM
    angles = torch.arange(SEQ, dtype=torch.float64)[:, None] / ROPE_THETA**exponents
    cos, sin = (table.to(x.dtype)[:, None, :] for table in (angles.cos(), angles.sin()))
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def random_parameters(shapes, seed):
    """Larger than a real initialisation, and no constant biases or gains: attention must not be near
    uniform, nor any parameter so small that leaving it out would go unnoticed."""
    generator = torch.Generator().manual_seed(seed)
    parameters = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        mean = 1.0 if name.endswith(".gain") else 0.0
        parameters[name] = mean + noise * (0.15 if name.endswith(DECAYING) else 0.1)
    return parameters


def random_tokens(seed):
    """Twenty global batches. Tokens are skewed towards small ones and half of the time follow from
    the token before, so that twenty steps learn something."""
    rng = random.Random(seed)

    def window():
        tokens = [rng.randrange(VOCAB)]
        for _ in range(SEQ):
            follows = rng.random() < 0.5
            skewed = int(VOCAB * rng.random() ** 3)
            tokens.append((5 * tokens[-1] + 3) % (VOCAB // 4) if follows else skewed)
        return tokens

    windows = [[window() for _ in range(GLOBAL_BATCH)] for _ in range(STEPS)]
    return {
        "inputs": [[w[:-1] for w in batch] for batch in windows],
        "targets": [[w[1:] for w in batch] for batch in windows],
    }


def adamw(parameters):
    """AdamW with decay on matrices only."""
    decaying = [p for name, p in parameters.items() if name.endswith(DECAYING)]
    others = [p for name, p in parameters.items() if not name.endswith(DECAYING)]
    groups = [
        {"params": decaying, "weight_decay": ADAMW["weight_decay"]},
        {"params": others, "weight_decay": 0.0},
    ]
    betas = (ADAMW["beta1"], ADAMW["beta2"])
    return torch.optim.AdamW(groups, lr=ADAMW["learning_rate"], betas=betas, eps=ADAMW["epsilon"])


def sgd(parameters):
    """Momentum without dampening: velocity = momentum * velocity + gradient."""
    momentum = SGD["momentum"]
    return torch.optim.SGD(parameters.values(), lr=SGD["learning_rate"], momentum=momentum)


def train(loss_of, initial, tokens, make_optimizer, clip_norm, dtype):
    """Losses and gradient norms (before clipping) of all steps, and each parameter's gradient norm in
    the first one. The loss of a step is that before its update."""
    parameters = {name: p.to(dtype, copy=True).requires_grad_() for name, p in initial.items()}
    optimizer = make_optimizer(parameters)
    losses, norms, first = [], [], {}
    for inputs, targets in zip(tokens["inputs"], tokens["targets"], strict=True):
        optimizer.zero_grad()
        loss = loss_of(parameters, torch.tensor(inputs), torch.tensor(targets))
        loss.backward()
        if not first:
            first = {name: p.grad.norm().item() for name, p in parameters.items()}
        norms.append(torch.nn.utils.clip_grad_norm_(parameters.values(), clip_norm).item())
        losses.append(loss.item())
        optimizer.step()
    return losses, norms, first


def golden_run(loss_of, initial, tokens, make_optimizer, settings):
    """One optimizer's part of `losses.json`, and the first step's gradient norms."""
    clip_norm = settings.get("clip_norm", math.inf)

    def run(dtype):
        return train(loss_of, initial, tokens, make_optimizer, clip_norm, dtype)

    losses, norms, first = run(torch.float32)
    exact, _, _ = run(torch.float64)
    drift = max(abs(a - b) / b for a, b in zip(losses, exact, strict=True))
    entry = {
        "settings": settings,
        "losses": losses,
        "losses_float64": exact,
        "max_relative_drift_from_float64": drift,
        "gradient_norms": norms,
    }
    return entry, first


MODELS = {
    "gpt": (
        f"gpt:layers={LAYERS},hidden={HIDDEN},heads={HEADS},seq={SEQ},vocab={VOCAB}",
        gpt_shapes(tied=False),
        gpt_loss,
    ),
    "gpt-tied": (
        f"gpt:layers={LAYERS},hidden={HIDDEN},heads={HEADS},seq={SEQ},vocab={VOCAB},tied=true",
        gpt_shapes(tied=True),
        gpt_loss,
    ),
    "llama": (
        f"llama:layers={LAYERS},hidden={HIDDEN},heads={HEADS},kv_heads={KV_HEADS}"
        f",ffn={LLAMA_FFN},seq={SEQ},vocab={VOCAB}",
        llama_shapes(),
        llama_loss,
    ),
}


def golden_losses(name, initial, tokens):
    """Everything `losses.json` holds."""
    model, _, loss_of = MODELS[name]
    with_adamw, first = golden_run(loss_of, initial, tokens, adamw, ADAMW)
    with_sgd, _ = golden_run(loss_of, initial, tokens, sgd, SGD)
    return {
        "model": model,
        "made_with": f"torch {torch.__version__}",
        "adamw": with_adamw,
        "sgd": with_sgd,
        "first_gradient_norms": first,
    }


def make():
    """Writes every golden file."""
    GOLDEN.mkdir(parents=True, exist_ok=True)
    tokens = random_tokens(seed=1)
    (GOLDEN / "tokens.json").write_text(json.dumps(tokens, separators=(",", ":")) + "\n")
    for seed, (name, (_, shapes, _)) in enumerate(MODELS.items()):
        initial = random_parameters(shapes, seed)
        folder = GOLDEN / name
        folder.mkdir(exist_ok=True)
        (folder / "initial.safetensors").write_bytes(save(initial))
        losses = golden_losses(name, initial, tokens)
        (folder / "losses.json").write_text(json.dumps(losses, indent=1) + "\n")
        print(summary(name, losses))


def check():
    """Compares what the files say with what this PyTorch computes; returns whether they agree."""
    tokens = json.loads((GOLDEN / "tokens.json").read_text())
    agrees = True
    for name, (_, shapes, _) in MODELS.items():
        initial = load_file(GOLDEN / name / "initial.safetensors")
        if {key: list(value.shape) for key, value in initial.items()} != shapes:
            sys.exit(f"{name}/initial.safetensors does not hold the model's parameters")
        stored = json.loads((GOLDEN / name / "losses.json").read_text())
        computed = golden_losses(name, initial, tokens)
        print(summary(name, computed))
        for optimizer in ("adamw", "sgd"):
            pairs = zip(stored[optimizer]["losses"], computed[optimizer]["losses"], strict=True)
            worst = max(abs(a - b) / a for a, b in pairs)
            agrees &= worst <= TOLERANCE
            verdict = "agrees" if worst <= TOLERANCE else "DISAGREES"
            print(f"  {optimizer}: {verdict}, at most {worst:.1e} relative")
    return agrees


def summary(name, losses):
    """One line about a model's runs."""
    parts = [
        f"{optimizer} {losses[optimizer]['losses'][0]:.4f} -> {losses[optimizer]['losses'][-1]:.4f}"
        f" (drift {losses[optimizer]['max_relative_drift_from_float64']:.1e})"
        for optimizer in ("adamw", "sgd")
    ]
    return f"{name}: " + ", ".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if not arguments.check:
        make()
    elif not check():
        sys.exit("the golden files differ from what this PyTorch computes")


if __name__ == "__main__":
    main()
