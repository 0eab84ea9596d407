#!/usr/bin/env python3
"""Draws pairs of a model and a cluster, and holds the plan that a search finds for each against plans of the same
simulator: those of every method whose steps are exact, and those that searches find for some of the machines. Prints what
is faster than the answer, and ends with status 1 if anything is. See `benches/README.md`.
"""

import argparse
import concurrent.futures
import json
import random
import subprocess
import sys
import time

# Methods after whose step weights are what one device would have.
METHODS = (
    "data-parallel horovod zero byteps herring parallax megatron-lm deepspeed gpipe torchgpipe pipedream-flush"
    " interleaved hanayo zb-h1 zb-h2 zb-1p zb-2p zb-v v-half v-min chimera dualpipe dualpipev"
).split()

MODELS = (
    "gpt-2 gpt-2-medium gpt-2-large gpt-2-xl llama-2-7b llama-2-13b llama-2-70b llama-3-8b llama-3-70b gemma-2b gemma-7b"
    " gemma-2-9b gemma-3-4b phi-2 phi-3-mini"
).split()

DEVICES = "a100-40g a100-80g h100-80g h200 v100-32g l40s rtx-3090 mi300x".split()
NODES = [(1, 2), (1, 4), (1, 8), (2, 4), (2, 8), (3, 8), (4, 1), (4, 8), (6, 4), (8, 8), (16, 8)]

# A plan that takes at most so much less is as fast.
SAME = 5e-4


def drawn(rng):
    """A model, a cluster of one kind of device or two, and a batch."""
    kinds = rng.sample(DEVICES, 1 if rng.random() < 0.8 else 2)
    groups = [(kind, *rng.choice(NODES)) for kind in kinds]
    return rng.choice(MODELS), groups, rng.choice([8, 24, 32, 64, 128, 256])


def named(groups):
    return "+".join(f"{kind}:{nodes}x{devices}" for kind, nodes, devices in groups)


def fewer(groups):
    """Some of the machines: each kind alone, half the nodes or devices, one node."""
    found = [[group] for group in groups] if len(groups) > 1 else []
    if len(groups) == 1:
        kind, nodes, devices = groups[0]
        found += [[(kind, nodes // 2, devices)]] if nodes > 1 else []
        found += [[(kind, 1, devices)]] if nodes > 2 else []
        found += [[(kind, nodes, devices // 2)]] if devices > 1 else []
    return found


def planned(arguments, model, groups, batch, *more):
    """Seconds of a step of the plan that fits, or none, of the search, and under which software."""
    command = [arguments.shardloom, "plan", model, "--cluster", named(groups), "--global-batch", str(batch), "--json"]
    begun = time.monotonic()
    try:
        done = subprocess.run(command + list(more), capture_output=True, text=True, timeout=arguments.timeout)
    except subprocess.TimeoutExpired:
        print(f"no end after {arguments.timeout} s: {' '.join(command[1:] + list(more))}", flush=True)
        return None, float(arguments.timeout), None
    took = time.monotonic() - begun
    if "panicked" in done.stderr:
        raise SystemExit(f"{' '.join(command + list(more))}\n{done.stderr}")
    if done.returncode != 0:
        return None, took, None
    answer = json.loads(done.stdout)
    predicted = answer["predicted"]
    fits = all(rank["peak_bytes"] <= 0.95 * rank["memory_bytes"] for rank in predicted["memory"])
    return (predicted["step_seconds"] if fits else None), took, answer["stack"]["name"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shardloom", default="target/release/shardloom", help="the program")
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="programs at a time")
    parser.add_argument("--timeout", type=int, default=120, help="seconds after which a program is stopped")
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    pairs = [drawn(rng) for _ in range(arguments.pairs)]

    def compared(pair):
        model, groups, batch = pair
        own, took, stack = planned(arguments, model, groups, batch)
        others = {}
        for method in METHODS:
            others[method] = planned(arguments, model, groups, batch, "--method", method)[0]
        # Some of the machines may usually run other software than all.
        same = ("--stack", stack) if stack else ()
        for some in fewer(groups):
            others[named(some)] = planned(arguments, model, some, batch, *same)[0]
        return own, took, {name: it for name, it in others.items() if it is not None}

    beaten, answered, rivals, slowest = 0, 0, 0, 0.0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for (model, groups, batch), (own, took, others) in zip(pairs, pool.map(compared, pairs)):
            answered += own is not None
            rivals += len(others)
            slowest = max(slowest, took)
            limit = float("inf") if own is None else own * (1 - SAME)
            faster = sorted((it, name) for name, it in others.items() if it < limit)
            beaten += bool(faster)
            for seconds, name in faster:
                answer = "no answer" if own is None else f"{own:.6g} s, {100 * (own / seconds - 1):.2f}% more"
                print(f"{model} --cluster {named(groups)} --global-batch {batch}: {answer} than {name}: {seconds:.6g} s", flush=True)
    print(
        f"{arguments.pairs} pairs, {answered} answered, {rivals} other plans that fit; {beaten} pairs with a faster one;"
        f" the longest search took {slowest:.1f} s"
    )
    sys.exit(beaten > 0)


if __name__ == "__main__":
    main()
