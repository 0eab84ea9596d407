"""Trains under what `shardloom export` writes, on processors, and holds losses to those of one process.

Accelerate and DeepSpeed train a small Llama of transformers; PyTorch's pipeline runtime, which torchtitan uses, runs the
tables of actions. Where Accelerate asks for a device, the script answers."""

import argparse
import csv
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import torch

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "torch_dtype": "float32",
}
BATCH, SEQ, STEPS = 8, 32, 5
# Options of `plan`, by project.
REPLICAS = ["--dp 2 --zero 0", "--dp 2 --zero 2", "--dp 2 --zero 3", "--dp 2 --zero 3 --micro-batch 1"]
CASES = {
    "accelerate": REPLICAS,
    "deepspeed": ["--dp 2 --zero 0", "--dp 2 --zero 1", "--dp 2 --zero 1 --micro-batch 2", *REPLICAS[1:]],
    "torchtitan": [
        f"--dp 1 --tp 1 --pp 4 --micro-batch 1 --schedule {schedule}"
        for schedule in ("interleaved", "zb-h1", "zb-v", "v-half", "v-min", "hanayo", "dualpipev")
    ],
}


def tokens(step):
    generator = torch.Generator().manual_seed(1000 + step)
    return torch.randint(0, CONFIG["vocab_size"], (BATCH, SEQ), generator=generator)


def llama(config):
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(config))


def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)


def share(step, number, count, pieces):
    """A replica's samples of a step, in pieces."""
    return tokens(step).chunk(count)[number].chunk(pieces)


def alone(config):
    model = llama(config)
    adam = optimizer(model.parameters())
    losses = []
    for step in range(STEPS):
        batch = tokens(step)
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        adam.zero_grad()
        losses.append(loss.item())
    return losses


def with_accelerate(folder):
    import torch.distributed.device_mesh
    from accelerate import Accelerator
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    def set_device(state):
        state.device = torch.device("cpu")

    meshes = torch.distributed.device_mesh.init_device_mesh

    def init_device_mesh(_, *shape, **names):
        return meshes("cpu", *shape, **names)

    if os.environ.get("ACCELERATE_USE_FSDP") == "true":
        # It shards on devices other than processors only.
        PartialState._prepare_backend = lambda *_: ("gloo", DistributedType.MULTI_GPU)
        PartialState.set_device = set_device
        torch.distributed.device_mesh.init_device_mesh = init_device_mesh
        torch.distributed.init_device_mesh = init_device_mesh
    else:
        os.environ["ACCELERATE_USE_CPU"] = "true"
    microbatches = int(os.environ["MICROBATCHES"])
    accelerator = Accelerator(gradient_accumulation_steps=microbatches)
    model = llama(folder / "config.json")
    model, adam = accelerator.prepare(model, optimizer(model.parameters()))
    losses = []
    for step in range(STEPS):
        total = 0.0
        pieces = share(step, accelerator.process_index, accelerator.num_processes, microbatches)
        for piece in pieces:
            with accelerator.accumulate(model):
                loss = model(input_ids=piece, labels=piece).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                adam.step()
                adam.zero_grad()
                total += loss.detach() / microbatches
        losses.append(accelerator.reduce(total, "mean").item())
    what = f"{accelerator.distributed_type.value}, {type(model).__name__}"
    return accelerator.is_main_process, losses, what


def with_deepspeed(folder):
    import deepspeed
    import torch.distributed

    deepspeed.init_distributed("gloo")
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    model = llama(folder / "config.json")
    settings = json.loads((folder / "deepspeed.json").read_text())
    engine, _, _, _ = deepspeed.initialize(
        model=model, optimizer=optimizer(model.parameters()), config=settings
    )
    microbatches = engine.gradient_accumulation_steps()
    losses = []
    for step in range(STEPS):
        total = torch.zeros(())
        for piece in share(step, rank, ranks, microbatches):
            loss = engine(input_ids=piece, labels=piece).loss
            engine.backward(loss)
            engine.step()
            total += loss.detach() / microbatches
        torch.distributed.all_reduce(total)
        losses.append(total.item() / ranks)
    return rank == 0, losses, f"ZeRO {engine.zero_optimization_stage()}, {microbatches} micro-batches"


def blocks(count):
    """So many layers, as stages of a pipeline."""
    torch.manual_seed(0)
    return [
        torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 16))
        for _ in range(count)
    ]


def squares(output, target):
    return ((output - target) ** 2).mean()


def with_table(folder):
    """Loss and gradients of a step, by PyTorch's runtime with the table."""
    import torch.distributed
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime

    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    with open(folder / "schedule.csv", newline="") as table:
        rows = [[_Action.from_str(action) for action in row if action] for row in csv.reader(table)]
    actions = [part for row in rows for action in row if action for part in action.sub_actions or (action,)]
    count = 1 + max(action.stage_index for action in actions)
    microbatches = 1 + max(action.microbatch_index or 0 for action in actions)
    own = [part for action in rows[rank] if action for part in action.sub_actions or (action,)]
    modules = blocks(count)
    held = sorted({action.stage_index for action in own})
    stages = [PipelineStage(modules[at], at, count, torch.device("cpu")) for at in held]
    runtime = _PipelineScheduleRuntime(stages, microbatches, loss_fn=squares)
    runtime._load_csv(str(folder / "schedule.csv"))
    places = runtime.stage_index_to_group_rank
    for stage in stages:
        stage.stage_index_to_group_rank = places
    generator = torch.Generator().manual_seed(7)
    inputs, targets = (torch.randn(2 * microbatches, 16, generator=generator) for _ in range(2))
    losses = []
    runtime.step(
        *((inputs,) if 0 in held else ()),
        **({"target": targets, "losses": losses} if count - 1 in held else {}),
    )
    serial = torch.nn.Sequential(*blocks(count))
    loss = squares(serial(inputs), targets)
    loss.backward()
    for at in held:
        for found, expected in zip(modules[at].parameters(), serial[at].parameters()):
            torch.testing.assert_close(found.grad, expected.grad, rtol=1e-5, atol=1e-7)
    if losses:
        torch.testing.assert_close(torch.stack(losses).mean(), loss.detach(), rtol=1e-6, atol=0)
    torch.distributed.barrier()
    what = f"{count} stages, {microbatches} micro-batches, {len(actions)} actions; gradients as of one process"
    return rank == 0, [loss.item()], what


WORKERS = {"accelerate": with_accelerate, "deepspeed": with_deepspeed, "torchtitan": with_table}


def run(command, **variables):
    """What a command prints; its errors if it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def trained(shardloom, project, options, folder):
    """What a run says that takes what is exported of a plan with these options."""
    config, plan = folder / "config.json", folder / "plan.toml"
    config.write_text(json.dumps(CONFIG))
    run(
        [shardloom, "plan", config, "--cluster", "h100-80g:4", "--seq", SEQ, "--precision", "fp32"]
        + ["--global-batch", BATCH, "--for", project, "-o", plan, *options.split()]
    )
    run([shardloom, "export", plan, "--to", project, "-o", folder, "--force"])
    words = options.split()
    ranks = 4 if project == "torchtitan" else 2
    if project == "accelerate":
        start = ["-m", "accelerate.commands.launch", "--config_file", folder / "accelerate.yaml"]
    else:
        start = ["-m", "torch.distributed.run", "--nproc-per-node", ranks]
    each = int(words[words.index("--micro-batch") + 1]) if "--micro-batch" in words else BATCH // ranks
    output = run(
        [sys.executable, *start, __file__, "--worker", project, folder],
        DS_ACCELERATOR="cpu",
        MICROBATCHES=str(BATCH // ranks // each),
    )
    said = [line for line in output.splitlines() if line.startswith('{"losses"')]
    return json.loads(said[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shardloom", type=pathlib.Path, help="the program")
    parser.add_argument("--only", choices=WORKERS, help="one project")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        project, folder = given.worker
        leads, losses, what = WORKERS[project](pathlib.Path(folder))
        if leads:
            print(json.dumps({"losses": losses, "what": what}), flush=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "config.json"
        config.write_text(json.dumps(CONFIG))
        expected = alone(config)
    for project, cases in CASES.items():
        for options in cases if given.only in (None, project) else ():
            with tempfile.TemporaryDirectory() as folder:
                said = trained(given.shardloom, project, options, pathlib.Path(folder))
            if project != "torchtitan":
                torch.testing.assert_close(said["losses"], expected, rtol=1e-5, atol=0)
            print(f"{project} {options}: {said['what']}; losses {said['losses']}", flush=True)


main()
