#!/usr/bin/env python3
"""Times training steps of a GPT in PyTorch on CPU: what shardloom's own steps are held against.

    torch_peer.py eager | ddp | fsdp2 | pipeline | gloo_allreduce  [sizes]

`eager` is one process; the others are two that talk through Gloo. Every process computes with one
thread. With `--precision bf16` computation is in bfloat16 with fp32 weights and gradients: by autocast, of
`fsdp2` by its mixed precision policy. Prints `{"step", "loss", "step_seconds", "tokens"}` per step and `{"summary": ...}` at the end;
the median leaves the first steps (`--warmup`) out.
"""

import argparse
import contextlib
import json
import os
import statistics
import tempfile
import time
import warnings

# Read by the math libraries when they are loaded.
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

from gpt import Gpt, Shape, loss_of

MODES = ("eager", "ddp", "fsdp2", "pipeline", "gloo_allreduce")
PROCESSES = 2
SEED = 0


def eager_step(shape, arguments):
    """The whole model in this process."""
    model = Gpt(shape)
    return data_parallel_step(model, adamw(model, arguments), autocast(arguments))


def ddp_step(shape, arguments):
    """Each process trains the whole model on half of the batch; gradients are all-reduced in buckets
    while the backward pass runs."""
    model = DistributedDataParallel(Gpt(shape), gradient_as_bucket_view=True, static_graph=True)
    return data_parallel_step(model, adamw(model, arguments), autocast(arguments))


def fsdp2_step(shape, arguments):
    """As `ddp_step`, but every process keeps half of each parameter, gradient and optimizer state and
    gathers a block's parameters when it needs them."""
    model = Gpt(shape)
    mesh = init_device_mesh("cpu", (PROCESSES,))
    formats = MixedPrecisionPolicy()
    if arguments.precision == "bf16":
        formats = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=formats)
    fully_shard(model, mesh=mesh, mp_policy=formats)
    return data_parallel_step(model, adamw(model, arguments), contextlib.nullcontext())


def autocast(arguments):
    """What forward passes run under."""
    return torch.autocast("cpu", torch.bfloat16, enabled=arguments.precision == "bf16")


def data_parallel_step(model, optimizer, forward):
    """A step on this process's share of the batch, whose forward pass runs under `forward`."""

    def step(inputs, targets):
        optimizer.zero_grad()
        with forward:
            loss = loss_of(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def pipeline_step(shape, arguments):
    """Blocks are cut in two stages of nearly equal arithmetic (the head counts for several blocks),
    which run 1F1B over micro-batches. In bfloat16 backward passes run under autocast too, as the schedule
    does not separate them."""
    rank = dist.get_rank()
    first = first_stage_blocks(shape) if arguments.cut is None else arguments.cut
    blocks = first if rank == 0 else shape.layers - first
    part = Gpt(shape, blocks, first=rank == 0, last=rank == 1)
    stage = PipelineStage(part, rank, PROCESSES, torch.device("cpu"))
    schedule = Schedule1F1B(stage, arguments.microbatches, loss_fn=loss_of)
    optimizer = adamw(part, arguments)
    forward = autocast(arguments)

    def step(inputs, targets):
        optimizer.zero_grad()
        losses = []
        with forward:
            if rank == 0:
                schedule.step(inputs)
            else:
                schedule.step(target=targets, losses=losses)
        optimizer.step()
        return torch.stack(losses).mean().detach() if losses else None

    return step


def first_stage_blocks(shape):
    """How many blocks the first of two stages gets so that the slower one is as fast as can be."""

    def slower(first):
        last = (shape.layers - first) * shape.block_flops() + shape.head_flops()
        return max(first * shape.block_flops(), last)

    return min(range(1, shape.layers), key=slower)


STEPS = {"eager": eager_step, "ddp": ddp_step, "fsdp2": fsdp2_step, "pipeline": pipeline_step}


def adamw(model, arguments):
    """PyTorch's AdamW in the implementation asked for."""
    implementation = {arguments.adamw: True}
    parameters = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.95), **implementation)


def train(rank, arguments):
    """Seconds and loss of every step in this process; a stage that sees no loss has None."""
    sizes = ("layers", "hidden", "heads", "seq", "vocab")
    shape = Shape(**{name: getattr(arguments, name) for name in sizes})
    torch.manual_seed(SEED)
    step = STEPS[arguments.mode](shape, arguments)
    share = slice(None)
    if arguments.mode in ("ddp", "fsdp2"):
        local = arguments.global_batch // PROCESSES
        share = slice(rank * local, (rank + 1) * local)
    tokens = torch.Generator().manual_seed(SEED)
    measured = []
    for _ in range(arguments.warmup + arguments.steps):
        size = (arguments.global_batch, shape.seq + 1)
        windows = torch.randint(shape.vocab, size, generator=tokens)[share]
        inputs, targets = windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
        start = time.perf_counter()
        loss = step(inputs, targets)
        measured.append((time.perf_counter() - start, None if loss is None else loss.item()))
    return measured


def gloo_allreduce(rank, arguments):
    """Seconds of summing one float32 tensor over the two processes, in place; there is no loss."""
    values = torch.empty(arguments.mebibytes * 2**20 // 4)
    measured = []
    for _ in range(arguments.warmup + arguments.steps):
        values.fill_(rank + 1)
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(values)
        measured.append((time.perf_counter() - start, None))
        if not bool((values == 3).all()):
            raise RuntimeError("the all-reduce gave a wrong sum")
    return measured


def run_process(rank, arguments, rendezvous):
    """One process of a measurement; the first one prints for all."""
    torch.set_num_threads(1)
    # The CPU backend has no streams to profile and says so at length.
    warnings.filterwarnings("ignore", category=UserWarning)
    measure = gloo_allreduce if arguments.mode == "gloo_allreduce" else train
    if rendezvous is None:
        report([measure(rank, arguments)], arguments)
        return
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=PROCESSES
    )
    everyones = [None] * PROCESSES
    dist.all_gather_object(everyones, measure(rank, arguments))
    if rank == 0:
        report(everyones, arguments)
    dist.barrier()
    # PyTorch's own shutdown now and then destroys a thread that still runs, and aborts the process.
    os._exit(0)


def report(everyones, arguments):
    """Prints every step as slow as its slowest process, with the mean of the processes' losses."""
    tokens = arguments.global_batch * arguments.seq
    step_seconds = []
    for step, parts in enumerate(zip(*everyones, strict=True)):
        step_seconds.append(max(seconds for seconds, _ in parts))
        line = {"step": step, "step_seconds": step_seconds[-1]}
        losses = [loss for _, loss in parts if loss is not None]
        if losses:
            line |= {"loss": statistics.mean(losses), "tokens": tokens}
        print(json.dumps(line))
    median = statistics.median(step_seconds[arguments.warmup :])
    summary = {
        "mode": arguments.mode,
        "steps": len(step_seconds),
        "warmup": arguments.warmup,
        "median_step_seconds": median,
        "torch": torch.__version__,
    }
    print(json.dumps({"summary": summary}), flush=True)


def parsed_arguments():
    """The command line, checked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mode", choices=MODES)
    for name, default in {
        "layers": 4,
        "hidden": 256,
        "heads": 4,
        "seq": 128,
        "vocab": 8192,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--global-batch", type=int, default=8, help="sequences per step")
    parser.add_argument("--microbatches", type=int, default=4, help="of the pipeline")
    parser.add_argument("--cut", type=int, help="blocks of the first stage; balanced if absent")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--adamw", choices=("fused", "foreach"), default="fused")
    parser.add_argument("--steps", type=int, default=10, help="measured steps")
    parser.add_argument("--warmup", type=int, default=2, help="steps before the measured ones")
    parser.add_argument("--mebibytes", type=int, default=64, help="of gloo_allreduce")
    parser.add_argument("--rank", type=int, choices=range(PROCESSES), help="be this process only")
    parser.add_argument("--rendezvous", help="file where processes of --rank find each other")
    arguments = parser.parse_args()
    if arguments.hidden % arguments.heads != 0:
        parser.error(f"--heads {arguments.heads} must divide --hidden {arguments.hidden}")
    parts = {"ddp": PROCESSES, "fsdp2": PROCESSES, "pipeline": arguments.microbatches}
    if arguments.global_batch % parts.get(arguments.mode, 1) != 0:
        wanted = f"a multiple of {parts[arguments.mode]}"
        parser.error(f"--global-batch {arguments.global_batch} must be {wanted}")
    if (arguments.rank is None) != (arguments.rendezvous is None):
        parser.error("--rank and --rendezvous go together")
    if arguments.steps < 1 or arguments.warmup < 0:
        parser.error("--steps must be at least 1 and --warmup at least 0")
    cut = 1 if arguments.cut is None else arguments.cut
    if arguments.mode == "pipeline" and not 0 < cut < arguments.layers:
        parser.error(
            f"two stages of at least one block cannot be cut from --layers {arguments.layers}"
        )
    return arguments


def main():
    arguments = parsed_arguments()
    if arguments.mode == "eager":
        run_process(0, arguments, None)
        return
    # Gloo otherwise looks the host's name up, which need not resolve.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if arguments.rank is not None:
        run_process(arguments.rank, arguments, arguments.rendezvous)
        return
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = os.path.join(folder, "rendezvous")
        torch.multiprocessing.spawn(run_process, (arguments, rendezvous), nprocs=PROCESSES)


if __name__ == "__main__":
    main()
