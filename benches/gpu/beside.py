#!/usr/bin/env python3
"""Times operators of training steps on one GPU beside a kernel that holds multiprocessors, as collectives do.

    beside.py --out FILE.csv [--hw H200]

Kernels of NCCL's collectives are a block of threads for each channel, which stays on its multiprocessor until the
collective is over, waits for data most of the time and copies it. Such a kernel of `blocks` blocks of 544 threads with
80 KB of shared memory each runs on a stream of its own, either waiting (it looks at one word of memory over and over) or
copying (as fast as it can, `gigabytes_per_second` read and as many written); operators are timed meanwhile. A row says
how long an operator takes alone, beside it, and the ratio: medians of five, in turn.
"""

import argparse
import csv
import statistics
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

COLUMNS = (
    "device",
    "kernel",
    "blocks",
    "gigabytes_per_second",
    "operator",
    "alone",
    "beside",
    "ratio",
)
THREADS = 544
SHARED_BYTES = 80 * 1024
SOURCE = r"""
extern "C" __global__ void hold(float4* to, const float4* from, int elements, int microseconds, int copies,
                                unsigned long long* copied) {
    extern __shared__ float shared[];
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    int own = elements / gridDim.x;
    from += blockIdx.x * own;
    to += blockIdx.x * own;
    int place = threadIdx.x;
    unsigned long long moved = 0;
    shared[threadIdx.x] = 0.0f;
    do {
        if (copies) {
            for (int i = 0; i < 8; i++) {
                to[place] = from[place];
                place += blockDim.x;
                moved += 1;
                if (place >= own) place = threadIdx.x;
            }
        } else {
            shared[threadIdx.x] += ((const volatile float*)from)[0];
        }
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - start < 1000ull * microseconds);
    if (shared[threadIdx.x] == 12345.0f) to[0].x = 1.0f;
    atomicAdd(copied, moved);
}
"""


def operators():
    """Names and functions, each of which runs an operator once."""
    bf16 = {"device": "cuda", "dtype": torch.bfloat16}
    found = []
    for m, n, k in (
        (8192, 8192, 8192),
        (4096, 4096, 4096),
        (8192, 28672, 8192),
        (8192, 4096, 14336),
    ):
        one, other = torch.randn(m, k, **bf16), torch.randn(k, n, **bf16)
        out = torch.empty(m, n, **bf16)
        found.append(
            (
                f"product {m}x{n}x{k}",
                lambda one=one, other=other, out=out: torch.mm(one, other, out=out),
            )
        )
    query, key, value = (
        torch.randn(2, 32, 4096, 128, **bf16, requires_grad=True) for _ in range(3)
    )

    def attention():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(query, key, value, is_causal=True)

    result = attention()
    gradient = torch.randn_like(result)
    found.append(("attention forward", attention))
    found.append(
        (
            "attention backward",
            lambda: torch.autograd.grad(result, (query, key, value), gradient, retain_graph=True),
        )
    )
    wide, gain = torch.randn(8192, 8192, **bf16), torch.randn(8192, **bf16)
    target = torch.empty_like(wide)
    found.append(("add", lambda: torch.add(wide, wide, out=target)))
    found.append(("gelu", lambda: F.gelu(wide)))
    found.append(("rms-norm", lambda: F.rms_norm(wide, (8192,), gain)))
    return found


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True)
    parser.add_argument("--hw", default="H100-80G")
    arguments = parser.parse_args()
    hold = torch.cuda._compile_kernel(SOURCE, "hold")
    hold.set_shared_memory_config(SHARED_BYTES)
    elements = (1 << 30) // 16
    source, target = (torch.zeros(1 << 28, device="cuda") for _ in range(2))
    counter = torch.zeros(1, device="cuda", dtype=torch.int64)
    side = torch.cuda.Stream()

    def launch(blocks, copies, microseconds):
        pointers = (target, source, elements, microseconds, int(copies), counter)
        hold(
            grid=(blocks, 1, 1),
            block=(THREADS, 1, 1),
            args=pointers,
            shared_mem=SHARED_BYTES,
            stream=side,
        )

    def timed(run, times):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(times):
            run()
        end.record()
        return begin, end

    rows = []
    named = operators()
    for _, run in named:
        timed(run, 20)
    torch.cuda.synchronize()
    for copies in (False, True):
        for blocks in (8, 16, 24, 32):
            counter.zero_()
            torch.cuda.synchronize()
            launch(blocks, copies, 20_000)
            torch.cuda.synchronize()
            rate = counter.item() * 16 / 20e-3 / 1e9
            for name, run in named:
                begin, end = timed(run, 5)
                end.synchronize()
                times = max(2, int(0.02 / (begin.elapsed_time(end) / 5e3)))
                pairs = []
                # In turn, as a device's clock follows its power.
                for _ in range(5):
                    begin, end = timed(run, times)
                    end.synchronize()
                    alone = begin.elapsed_time(end) / times / 1e3
                    launch(blocks, copies, int((times * alone * 4 + 0.02) * 1e6))
                    time.sleep(0.005)
                    begin, end = timed(run, times)
                    end.synchronize()
                    held = not side.query()
                    torch.cuda.synchronize()
                    if held:
                        pairs.append((alone, begin.elapsed_time(end) / times / 1e3))
                if not pairs:
                    print("it was over too soon beside", name)
                    continue
                alone, beside = (statistics.median(each) for each in zip(*pairs, strict=True))
                ratio = statistics.median(beside / alone for alone, beside in pairs)
                kernel = "copying" if copies else "waiting"
                numbers = (
                    f"{rate:.0f}",
                    name,
                    f"{alone:.3e}",
                    f"{beside:.3e}",
                    f"{ratio:.3f}",
                )
                rows.append((arguments.hw, kernel, blocks, *numbers))
                print(*rows[-1], flush=True)
    with open(arguments.out, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows)


if __name__ == "__main__":
    main()
