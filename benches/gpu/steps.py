#!/usr/bin/env python3
"""Times training steps of Hugging Face's GPT-2 and Llama in PyTorch on one GPU.

    steps.py --out FILE.csv [--later] [--seconds 240] [--profile FILE.json]

Writes rows of the schema of `crates/validate/data`, the most telling first; what is left when `--seconds` are
over is not measured. Computation is in bf16 by autocast with weights, gradients and AdamW's states in fp32; gradients are
clipped to a norm of 1; attention is PyTorch's fused one; nothing drops out. `compiled` compiles each
block and the loss. With `--profile` one more step of each is looked into: kernels launched, time in which the device
runs any, and the kernels that take longest.
"""

import argparse
import csv
import gc
import json
import statistics
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

GIB = 2**30
COLUMNS = (
    "source,ref,hw,gpus,model,layers,hidden,heads,kv_heads,ffn,vocab,experts,topk,seq,gbs,mbs,tp,pp,vp,cp,ep,dp,"
    "sharding,precision,recompute,schedule_or_note,step_s,step_kind,tok_s_gpu,tflops_gpu,peak_mem_gib,complete,"
    "leave_out,leave_out_why"
).split(",")


@dataclass(frozen=True)
class Model:
    """Sizes of a model; Llama's if `kv_heads` are others than `heads` or `ffn` is not four times `hidden`."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int

    def build(self, seq):
        """The model on the device, in fp32, with random weights; embedding and head are one."""
        if self.name.startswith("gpt"):
            config = GPT2Config(
                vocab_size=self.vocab,
                n_positions=seq,
                n_embd=self.hidden,
                n_layer=self.layers,
                n_head=self.heads,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
                use_cache=False,
                attn_implementation="sdpa",
            )
            kind = GPT2LMHeadModel
        else:
            config = LlamaConfig(
                vocab_size=self.vocab,
                hidden_size=self.hidden,
                intermediate_size=self.ffn,
                num_hidden_layers=self.layers,
                num_attention_heads=self.heads,
                num_key_value_heads=self.kv_heads,
                max_position_embeddings=seq,
                tie_word_embeddings=True,
                use_cache=False,
                attn_implementation="sdpa",
            )
            kind = LlamaForCausalLM
        with torch.device(DEVICE):
            return kind(config).float()


GPT2 = Model("gpt2", 12, 768, 12, 12, 3072, 50304)
GPT2_AS_RELEASED = Model("gpt2-50257", 12, 768, 12, 12, 3072, 50257)
GPT2_MEDIUM = Model("gpt2-medium", 24, 1024, 16, 16, 4096, 50304)
GPT2_LARGE = Model("gpt2-large", 36, 1280, 20, 20, 5120, 50304)
GPT2_XL = Model("gpt2-xl", 48, 1600, 25, 25, 6400, 50304)
LLAMA_1B = Model("llama-3.2-1b", 16, 2048, 32, 8, 8192, 128256)
LLAMA_3B = Model("llama-3.2-3b", 28, 3072, 24, 8, 8192, 128256)
TINY_LLAMA = Model("llama-1.1b", 22, 2048, 32, 4, 5632, 32000)
# A part of a large model: four layers of Llama 3 8B and of 70B.
LLAMA_8B_PART = Model("llama-3-8b-4-layers", 4, 4096, 32, 8, 14336, 32000)
LLAMA_70B_PART = Model("llama-3-70b-2-layers", 2, 8192, 64, 8, 28672, 32000)

# Sizes of other models that people train, of which some have a part of their layers.
SMOL_135M = Model("llama-smol-135m", 30, 576, 9, 3, 1536, 49152)
SMOL_360M = Model("llama-smol-360m", 32, 960, 15, 5, 2560, 49152)
QWEN_HALF = Model("llama-qwen-0.5b", 24, 896, 14, 2, 4864, 151936)
QWEN_7B_PART = Model("llama-qwen-7b-4-layers", 4, 3584, 28, 4, 18944, 152064)
LLAMA2_7B_PART = Model("llama-2-7b-6-layers", 6, 4096, 32, 32, 11008, 32000)
LLAMA2_13B_PART = Model("llama-2-13b-4-layers", 4, 5120, 40, 40, 13824, 32000)
GPT_1_4B = Model("gpt-1.4b", 24, 2048, 16, 16, 8192, 50304)
GPT_2_7B_PART = Model("gpt-2.7b-12-layers", 12, 2560, 32, 32, 10240, 50304)

# Model, sequence length, samples of a micro-batch, micro-batches, whether all is computed twice, whether compiled.
RUNS = [
    (GPT2, 1024, 16, 1, False, False),
    (LLAMA_1B, 2048, 4, 1, False, False),
    (GPT2_XL, 1024, 4, 1, False, False),
    (LLAMA_8B_PART, 4096, 2, 1, False, False),
    (GPT2, 1024, 16, 1, False, True),
    (LLAMA_1B, 2048, 4, 1, False, True),
    (GPT2_XL, 1024, 4, 1, False, True),
    (LLAMA_8B_PART, 4096, 2, 1, False, True),
    (GPT2, 1024, 1, 1, False, False),
    (GPT2, 1024, 4, 1, False, False),
    (LLAMA_1B, 2048, 1, 1, False, False),
    (LLAMA_1B, 2048, 4, 1, True, False),
    (LLAMA_1B, 4096, 2, 1, False, False),
    (LLAMA_1B, 8192, 1, 1, False, False),
    (LLAMA_1B, 2048, 2, 4, False, False),
    (GPT2_XL, 1024, 1, 1, False, False),
    (GPT2_XL, 1024, 16, 1, True, False),
    (GPT2_MEDIUM, 1024, 8, 1, False, False),
    (GPT2_MEDIUM, 1024, 8, 1, False, True),
    (LLAMA_3B, 2048, 1, 1, False, True),
    (TINY_LLAMA, 2048, 4, 1, False, True),
    (LLAMA_1B, 8192, 1, 1, False, True),
    (GPT2, 1024, 1, 1, False, True),
    (LLAMA_70B_PART, 4096, 1, 1, False, True),
    (LLAMA_1B, 2048, 4, 1, True, True),
    (GPT2, 1024, 64, 1, False, True),
    (GPT2, 1024, 16, 4, False, True),
    (GPT2_MEDIUM, 1024, 8, 4, False, False),
    (GPT2_LARGE, 1024, 8, 1, False, False),
    (GPT2_LARGE, 1024, 8, 1, True, False),
    (LLAMA_3B, 2048, 1, 1, False, False),
    (LLAMA_3B, 2048, 4, 1, True, False),
    (TINY_LLAMA, 2048, 4, 1, False, False),
    (TINY_LLAMA, 2048, 1, 8, False, False),
    (LLAMA_70B_PART, 4096, 1, 1, False, False),
    (LLAMA_70B_PART, 8192, 1, 1, True, False),
    (LLAMA_8B_PART, 8192, 2, 1, False, False),
    (LLAMA_8B_PART, 16384, 1, 1, False, False),
    (GPT2_AS_RELEASED, 1024, 16, 1, False, False),
    (LLAMA_3B, 4096, 2, 1, True, True),
    (GPT2_LARGE, 1024, 8, 1, False, True),
    (LLAMA_1B, 2048, 16, 1, False, False),
    (GPT2_XL, 1024, 16, 1, False, False),
    (GPT2_MEDIUM, 1024, 32, 1, False, False),
    (GPT2, 1024, 64, 1, False, False),
]

# Measured when the constants of the stacks and devices were known, to see how predictions hold for other models.
LATER_RUNS = [
    (model, seq, micro, count, again, compiled)
    for model, seq, micro, count, again in (
        (QWEN_HALF, 2048, 8, 1, False),
        (LLAMA2_7B_PART, 4096, 1, 1, False),
        (SMOL_360M, 2048, 8, 1, False),
        (GPT_1_4B, 2048, 4, 1, False),
        (QWEN_7B_PART, 4096, 1, 1, False),
        (SMOL_135M, 2048, 16, 1, False),
        (LLAMA2_13B_PART, 4096, 1, 2, False),
        (GPT_2_7B_PART, 2048, 4, 1, False),
        (QWEN_HALF, 4096, 4, 2, True),
        (LLAMA2_7B_PART, 2048, 4, 1, True),
        (SMOL_360M, 512, 16, 1, False),
        (GPT_1_4B, 512, 8, 1, False),
    )
    for compiled in (False, True)
]


def blocks(model):
    """The transformer blocks."""
    return model.transformer.h if hasattr(model, "transformer") else model.model.layers


def loss_of(logits, targets):
    """Mean cross-entropy in fp32."""
    return F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten())


def step_of(model, optimizer, compute_loss, micro_batches):
    """One step over all micro-batches."""

    def step():
        for tokens in micro_batches:
            with torch.autocast(DEVICE, torch.bfloat16):
                logits = model(tokens[:, :-1]).logits
                loss = compute_loss(logits, tokens[:, 1:])
            (loss / len(micro_batches)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def looked_into(step):
    """What one step launches and how long the device is busy with it."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        step()
        synchronize()
    # Ranges that are named on the device are there beside the kernels in them.
    kernels = [
        event
        for event in profiler.events()
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation
    ]
    by_name = {}
    for event in kernels:
        count, took = by_name.get(event.name, (0, 0.0))
        by_name[event.name] = (count + 1, took + event.device_time)
    longest = sorted(by_name.items(), key=lambda item: -item[1][1])[:40]
    return {
        "kernels": len(kernels),
        "device_seconds": sum(event.device_time for event in kernels) * 1e-6,
        "longest": [(name[:120], count, round(took)) for name, (count, took) in longest],
    }


def measure(run, steps, into):
    """Cells of a row that were measured: time, how, and peak memory."""
    model, seq, micro, count, again, compiled = run
    torch.manual_seed(0)
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
    network = model.build(seq)
    network.train()
    if again:
        network.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={"use_reentrant": False}
        )
    compute_loss = loss_of
    if compiled:
        torch._dynamo.reset()
        for block in blocks(network):
            block.compile(dynamic=False)
        compute_loss = torch.compile(loss_of, dynamic=False)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True)
    micro_batches = torch.randint(model.vocab, (count, micro, seq + 1), device=DEVICE).unbind()
    step = step_of(network, optimizer, compute_loss, micro_batches)
    took = []
    warmup, most = 4, 4 * steps
    # Short steps are repeated more often.
    while len(took) < warmup + steps or (len(took) < warmup + most and sum(took[warmup:]) < 1.5):
        if len(took) == warmup and DEVICE == "cuda":
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        step()
        synchronize()
        took.append(time.perf_counter() - start)
    kept = took[warmup:]
    spread = (max(kept) - min(kept)) / statistics.median(kept)
    allocated = torch.cuda.max_memory_allocated() / GIB if DEVICE == "cuda" else 0.0
    reserved = torch.cuda.max_memory_reserved() / GIB if DEVICE == "cuda" else 0.0
    seen = looked_into(step) if into is not None else None
    if into is not None:
        parameters = sum(parameter.numel() for parameter in network.parameters())
        into.append({"run": named(run), "parameters": parameters, "reserved": reserved, **seen})
    return {
        "step_s": f"{statistics.median(kept):.6g}",
        "step_kind": f"measured_median_n{len(kept)}_spread{spread:.3f}",
        "tok_s_gpu": f"{count * micro * seq / statistics.median(kept):.6g}",
        "peak_mem_gib": f"{allocated:.4f}",
    }


def named(run):
    model, seq, micro, count, again, compiled = run
    return f"{model.name} seq {seq} mbs {micro} x {count}{' full' if again else ''}{' compiled' if compiled else ''}"


def row(run, device, measured):
    """A row of the table."""
    model, seq, micro, count, again, compiled = run
    cells = dict.fromkeys(COLUMNS, "")
    cells |= {
        "source": f"Hugging Face in PyTorch, {'blocks compiled' if compiled else 'eager'}",
        "ref": f"benches/gpu/steps.py;PyTorch {torch.__version__.split('+')[0]};transformers {transformers.__version__}",
        "hw": device,
        "gpus": 1,
        "model": model.name,
        "layers": model.layers,
        "hidden": model.hidden,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "ffn": model.ffn,
        "vocab": model.vocab,
        "experts": 0,
        "seq": seq,
        "gbs": micro * count,
        "mbs": micro,
        **dict.fromkeys(("tp", "pp", "vp", "cp", "ep", "dp"), 1),
        "sharding": "ddp",
        "precision": "amp_bf16",
        "recompute": "full" if again else "none",
        "schedule_or_note": "fused AdamW",
        "complete": 1,
    }
    return cells | measured


def main():
    global DEVICE
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True)
    parser.add_argument("--hw", help="what the GPU is called in the table", default="H100-80G")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--profile")
    parser.add_argument("--later", action="store_true", help="the runs that nothing was fitted to")
    parser.add_argument("--only", help="a part of a run's name", default="")
    arguments = parser.parse_args()
    DEVICE = arguments.device
    torch.set_float32_matmul_precision("high")
    into = [] if arguments.profile else None
    end = time.monotonic() + arguments.seconds
    with open(arguments.out, "w", newline="") as file:
        table = csv.DictWriter(file, COLUMNS)
        table.writeheader()
        for run in LATER_RUNS if arguments.later else RUNS:
            if arguments.only not in named(run):
                continue
            if time.monotonic() > end:
                print("out of time: the rest is not measured")
                break
            start = time.monotonic()
            try:
                measured = measure(run, arguments.steps, into)
            except torch.OutOfMemoryError:
                measured = {"step_kind": "crashed_or_oom"}
            table.writerow(row(run, arguments.hw, measured))
            file.flush()
            print(f"{named(run)}: {measured} in {time.monotonic() - start:.1f} s", flush=True)
            gc.collect()
            if DEVICE == "cuda":
                torch.cuda.empty_cache()
            if arguments.profile:
                with open(arguments.profile, "w") as profile:
                    json.dump(into, profile)


if __name__ == "__main__":
    main()
