#!/usr/bin/env python3
"""Times single operators of training steps in PyTorch on one GPU: what the cost model claims of a device.

    operators.py --out FILE.csv [--seconds 150]

Writes a row per operator, pass, format and shape, the most telling first; what is left when `--seconds` are
over is not measured. A product is `batch` times `[m, k] x [k, n]`; attention has `batch` heads of all
samples, `m` queries, `n` keys and heads of size `k`; an
embedding looks up `m` rows of `n` numbers in a table of `k`; everything else goes over `m` rows of `n` numbers. Times are
medians of repeated runs between events of the device, with its cache overwritten in between.
"""

import argparse
import csv
import functools
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from triton.testing import do_bench

COLUMNS = (
    "device",
    "operator",
    "pass",
    "format",
    "batch",
    "m",
    "n",
    "k",
    "library",
    "bytes",
    "seconds",
)
# How many operands of as many numbers as it goes over an operator reads and writes, forward and backward.
OPERANDS = {
    "add": (3,),
    "gelu": (2, 3),
    "swiglu": (3, 5),
    "layer-norm": (2, 3),
    "rms-norm": (2, 3),
    "copy": (2,),
}
# Bytes of each number that others read and write, by pass: a mask of a byte, logits without copies, and
# weights, gradients and two states that are read and all but gradients written.
BYTES = {
    ("dropout", "forward"): 5,
    ("dropout", "backward"): 5,
    ("cast", "forward"): 6,
    ("cross-entropy", "forward"): 2,
    ("cross-entropy", "backward"): 4,
    ("update.adamw", "update"): 28,
    ("norm", "update"): 12,
}
FORMATS = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "tf32": torch.float32,
    "fp32": torch.float32,
}
# Hidden sizes of GPT-2, GPT-2 medium, Llama 3.2 1B, Llama 3 8B and 70B.
HIDDEN = (768, 1024, 2048, 4096, 8192)
# Rows and width of what operators without products go over.
ROWS = (
    (4096, 4096),
    (8192, 1024),
    (2048, 2048),
    (16384, 8192),
    (1024, 768),
    (32768, 2048),
    (65536, 4096),
)


def seconds(run):
    """Median time of `run` on the device."""
    return do_bench(run, warmup=5, rep=30, return_mode="median") * 1e-3


def operand_bytes(operator, which, format, shape):
    """Bytes of all that an operator reads and writes, each counted once; none of products and attention."""
    _, m, n, k = shape
    if operator in OPERANDS:
        return OPERANDS[operator][which == "backward"] * (4 if format == "fp32" else 2) * m * n
    if operator == "embed":
        return 8 * m * n if which == "forward" else 4 * (m * n + k * n)
    each = BYTES.get((operator, which))
    return None if each is None else each * m * n


def numbers(*size, dtype=torch.bfloat16):
    """Random numbers on the device; gradients of them are wanted."""
    return torch.randn(*size, device="cuda", dtype=dtype).requires_grad_()


def product(layout, dtype, batch, m, n, k):
    """One product in the layout of a pass: weights are kept as `[n, k]`."""
    lead = () if batch == 1 else (batch,)
    left, right = {
        "forward": (
            lambda: numbers(*lead, m, k, dtype=dtype),
            lambda: numbers(*lead, n, k, dtype=dtype).mT,
        ),
        "input": (
            lambda: numbers(*lead, m, k, dtype=dtype),
            lambda: numbers(*lead, k, n, dtype=dtype),
        ),
        "weight": (
            lambda: numbers(*lead, k, m, dtype=dtype).mT,
            lambda: numbers(*lead, k, n, dtype=dtype),
        ),
    }[layout]
    left, right = left().detach(), right().detach()
    return lambda: left @ right


def product_in_8_bits(m, n, k):
    """One product of e4m3 numbers with a scale for each tensor, and a result in bf16."""
    left = torch.randn(m, k, device="cuda").to(torch.float8_e4m3fn)
    right = torch.randn(n, k, device="cuda").to(torch.float8_e4m3fn).t()
    one = torch.ones((), device="cuda")
    return lambda: torch._scaled_mm(left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def backward_of(forward, inputs):
    """The backward pass of `forward`, which is run once."""
    output = forward()
    gradient = torch.randn_like(output)
    return lambda: torch.autograd.grad(output, inputs, gradient, retain_graph=True)


def products():
    """Products of blocks and heads by tokens and hidden size; all passes have one shape's arithmetic."""
    shapes = []
    for hidden in HIDDEN:
        for tokens in (2048, 8192, 16384, 4096):
            for n, k in (
                (4 * hidden, hidden),
                (hidden, 4 * hidden),
                (hidden, hidden),
                (hidden // 2, hidden),
            ):
                shapes.append((tokens, n, k))
        shapes.append((4096, 128256, hidden))
    shapes += [
        (8192, 50304, 768),
        (8192, 50257, 768),
        (1024, 768, 768),
        (1024, 3072, 768),
        (512, 2048, 2048),
    ]
    for m, n, k in shapes:
        yield "bf16", "forward", (1, m, n, k)
        yield "bf16", "input", (1, m, k, n)
        yield "bf16", "weight", (1, n, k, m)
    for m, n, k in shapes:
        if m in (2048, 8192):
            yield "fp16", "forward", (1, m, n, k)
            if n % 16 == 0 and k % 16 == 0:
                yield "fp8", "forward", (1, m, n, k)
            if n <= 16384 and k <= 16384:
                yield "tf32", "forward", (1, m, n, k)
                if m == 2048:
                    yield "fp32", "forward", (1, m, n, k)
    for batch, seq, head in ((192, 1024, 64), (32, 2048, 128), (64, 4096, 128)):
        yield "bf16", "forward", (batch, seq, seq, head)


def attention():
    """Samples, heads, length and size of heads."""
    yield from (
        (8, 32, 2048, 64),
        (8, 12, 1024, 64),
        (4, 32, 4096, 128),
        (1, 32, 8192, 128),
        (2, 32, 8192, 64),
        (1, 12, 1024, 64),
        (1, 32, 2048, 128),
        (32, 16, 512, 64),
        (16, 25, 1024, 64),
        (1, 32, 16384, 128),
        (1, 8, 32768, 128),
        (1, 24, 2048, 128),
        (16, 16, 128, 64),
        (2, 16, 4096, 64),
    )


def row_operators(rows, width):
    """Name, forward pass and inputs of operators whose time is that of memory, over `[rows, width]`."""
    x, y = numbers(rows, width), numbers(rows, width)
    gain, bias = numbers(width), numbers(width)
    gain32, bias32 = numbers(width, dtype=torch.float32), numbers(width, dtype=torch.float32)
    x32 = numbers(rows, width, dtype=torch.float32)
    yield "add", "bf16", lambda: x + y, None
    yield "gelu", "bf16", lambda: F.gelu(x, approximate="tanh"), [x]
    yield "swiglu", "bf16", lambda: F.silu(x) * y, [x, y]
    yield "layer-norm", "bf16", lambda: F.layer_norm(x, (width,), gain, bias), [x, gain, bias]
    yield (
        "layer-norm",
        "fp32",
        lambda: F.layer_norm(x32, (width,), gain32, bias32),
        [x32, gain32, bias32],
    )
    yield "rms-norm", "bf16", lambda: F.rms_norm(x, (width,), gain), [x, gain]
    yield "dropout", "bf16", lambda: F.dropout(x, 0.1), [x]
    yield "copy", "bf16", lambda: x.detach().clone(), None
    yield "cast", "fp32 to bf16", lambda: x32.detach().to(torch.bfloat16), None


def losses():
    """Cross-entropy in fp32 of logits in bf16."""
    for tokens, vocab in ((2048, 128256), (8192, 50304), (8192, 32000)):
        logits = numbers(tokens, vocab)
        targets = torch.randint(vocab, (tokens,), device="cuda")
        yield (
            tokens,
            vocab,
            lambda logits=logits, targets=targets: F.cross_entropy(logits.float(), targets),
            logits,
        )


def embeddings():
    """Rows of a table in fp32, looked up and cast to bf16, and the gradient of the whole table."""
    for tokens, vocab, width in ((8192, 50304, 768), (8192, 128256, 2048), (32768, 32000, 4096)):
        table = numbers(vocab, width, dtype=torch.float32)
        ids = torch.randint(vocab, (tokens,), device="cuda")
        yield tokens, vocab, width, lambda table=table, ids=ids: F.embedding(ids, table), table


def updates():
    """AdamW of so many parameters in tensors of 4 million each, fused and by lists of tensors."""
    for millions in (16, 128, 1024):
        parameters = [numbers(2048, 2048, dtype=torch.float32) for _ in range(millions // 4)]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        for library in ("fused", "foreach"):
            optimizer = torch.optim.AdamW(parameters, lr=1e-4, **{library: True})
            yield millions, "update.adamw", library, optimizer.step
            del optimizer
        yield (
            millions,
            "norm",
            "foreach",
            lambda: torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True),
        )


def operators():
    """All rows without device and time, each with a function that makes what is to be run."""
    for batch, heads, seq, size in attention():
        shape = (batch * heads, seq, seq, size)
        for library, backend in (
            ("flash", SDPBackend.FLASH_ATTENTION),
            ("cudnn", SDPBackend.CUDNN_ATTENTION),
        ):

            def forward(backend=backend, size_of_all=(batch, heads, seq, size)):
                q, k, v = (numbers(*size_of_all) for _ in range(3))

                def run():
                    with sdpa_kernel(backend):
                        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

                return run, [q, k, v]

            name = "fused-attention+causal"
            yield name, "forward", "bf16", shape, library, lambda forward=forward: forward()[0]
            yield (
                name,
                "input",
                "bf16",
                shape,
                library,
                lambda forward=forward: backward_of(*forward()),
            )
    for rows, width in ROWS:
        shape = (1, rows, width, 1)
        for name, format, forward, inputs in row_operators(rows, width):
            yield name, "forward", format, shape, "eager", lambda forward=forward: forward
            if inputs is not None:
                run = functools.partial(backward_of, forward, inputs)
                yield name, "backward", format, shape, "eager", run
    for tokens, vocab, forward, logits in losses():
        shape = (1, tokens, vocab, 1)
        yield "cross-entropy", "forward", "bf16", shape, "eager", lambda forward=forward: forward
        run = functools.partial(backward_of, forward, [logits])
        yield "cross-entropy", "backward", "bf16", shape, "eager", run
    for tokens, vocab, width, forward, table in embeddings():
        shape = (1, tokens, width, vocab)
        yield "embed", "forward", "fp32", shape, "eager", lambda forward=forward: forward
        run = functools.partial(backward_of, forward, [table])
        yield "embed", "backward", "fp32", shape, "eager", run
    for millions, name, library, step in updates():
        yield (
            name,
            "update",
            "fp32",
            (1, 4 * (millions // 4), 2**20, 1),
            library,
            lambda step=step: step,
        )
    for format, layout, shape in products():
        if format == "fp8":
            run = functools.partial(product_in_8_bits, *shape[1:])
        else:
            run = functools.partial(product, layout, FORMATS[format], *shape)
        yield "contract", layout, format, shape, "cublas", run


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True)
    parser.add_argument("--hw", help="what the GPU is called in the table", default="H100-80G")
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--only", help="a part of an operator's name", default="")
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.seconds
    with open(arguments.out, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        for operator, which, format, shape, library, make in operators():
            if arguments.only not in operator:
                continue
            # Fp32 is rounded to 10 bits of mantissa for products if so.
            torch.backends.cuda.matmul.allow_tf32 = format == "tf32"
            try:
                took = seconds(make())
            except RuntimeError as error:
                print(
                    f"{operator} {which} {format} {shape} {library}: {str(error).splitlines()[0]}"
                )
                continue
            moved = operand_bytes(operator, which, format, shape)
            table.writerow(
                (arguments.hw, operator, which, format, *shape, library, moved, f"{took:.6g}")
            )
            if time.monotonic() > end:
                print("out of time: the rest is not measured")
                break


if __name__ == "__main__":
    main()
