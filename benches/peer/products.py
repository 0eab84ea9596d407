#!/usr/bin/env python3
"""Holds the matrix products of training steps against PyTorch's on this machine, one thread each, and prints a
Markdown table: of each product our speed, its share of what the processor can do from registers to registers,
and its ratio to PyTorch's. Both sides take turns; medians of the repeats. See `benches/README.md`.
"""

import argparse
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
import time

BENCH = "cargo bench --quiet -p shardloom-kernels --bench products -- --json"
REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
# How long a product is repeated between two looks at the clock, and how often.
SECONDS = 0.02
REPEATS = 15


def ours(command):
    """Our peak and products, as the bench prints them."""
    done = subprocess.run(
        shlex.split(command), cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{command}\n{done.stderr}")
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if len(lines) < 2:
        sys.exit(f"{command} printed no products; does it lack --json?")
    peak, *products = lines
    return peak, products


def theirs(python, products, options):
    """PyTorch's operations a second for the same products, in their order."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(
        [python, __file__, "--measure-torch", *(["--bf16"] if options.bf16 else [])],
        input=json.dumps(products),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def measure_torch(bf16):
    """Reads products from standard input and prints PyTorch's operations a second for each."""
    import torch  # Only here, as the rest needs nothing but Python.

    torch.set_num_threads(1)
    torch.set_default_dtype(torch.bfloat16 if bf16 else torch.float32)
    results = []
    for product in json.load(sys.stdin):
        batch, rows, inputs, outputs = (
            product[key] for key in ("batch", "rows", "inputs", "outputs")
        )
        # In the layout that PyTorch's linear layers have, and to memory that is there, as ours.
        x, dx = torch.randn(batch, rows, inputs), torch.empty(batch, rows, inputs)
        y, dy = torch.empty(batch, rows, outputs), torch.randn(batch, rows, outputs)
        w, dw = torch.randn(batch, outputs, inputs), torch.zeros(batch, outputs, inputs)
        if batch == 1:
            x, dx, y, dy, w, dw = (each[0] for each in (x, dx, y, dy, w, dw))
        calls = {
            "forward": lambda: torch.matmul(x, w.mT, out=y),
            "input": lambda: torch.matmul(dy, w, out=dx),
            "weight": lambda: dw.addmm_(dy.mT, x) if batch == 1 else dw.baddbmm_(dy.mT, x),
        }
        operations = 2 * batch * rows * inputs * outputs
        results.append(operations / median_seconds(calls[product["pass"]]))
    print(json.dumps(results))


def median_seconds(call):
    """Seconds of one call, by the median of some measurements."""

    def timed(calls):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - start) / calls

    timed(1)
    calls = max(1, round(SECONDS / timed(1)))
    return statistics.median(timed(calls) for _ in range(REPEATS))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    environment = pathlib.Path.home() / ".cache/shardloom-peer/bin/python"
    parser.add_argument("--torch-python", default=str(environment), help="a Python with PyTorch")
    parser.add_argument("--bench", default=BENCH, help="our command")
    parser.add_argument("--bf16", action="store_true", help="operands in bfloat16, PyTorch's results too")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each side")
    parser.add_argument("--measure-torch", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure_torch:
        measure_torch(options.bf16)
        return
    if options.repeats < 1:
        parser.error("--repeats must be at least 1")
    runs = []
    for _ in range(options.repeats):
        peak, products = ours(options.bench + (" --bf16" if options.bf16 else ""))
        runs.append((peak, products, theirs(options.torch_python, products, options)))
    median = statistics.median
    tier, products = runs[0][0]["tier"], runs[0][1]
    has_peak = runs[0][0]["peak_flops"] is not None
    peak = median(run[0]["peak_flops"] for run in runs) if has_peak else None
    print(tier if peak is None else f"{tier}: {peak / 1e9:.0f} GFLOP/s from registers to registers")
    print("\n| product | rows x inputs x outputs | pass | ours GFLOP/s | of the peak | theirs | ours / theirs |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for at, product in enumerate(products):
        flops = median(run[1][at]["flops"] for run in runs)
        peer = median(run[2][at] for run in runs)
        ratio = median(run[1][at]["flops"] / run[2][at] for run in runs)
        share = f"{flops / peak:.2f}" if has_peak else ""
        sizes = " x ".join(str(product[key]) for key in ("rows", "inputs", "outputs"))
        cells = [product["product"], sizes, product["pass"]]
        cells += [f"{flops / 1e9:.0f}", share, f"{peer / 1e9:.0f}", f"{ratio:.2f}"]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
