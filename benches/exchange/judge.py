"""Lets the projects themselves read what `shardloom export` writes for them.

The golden files of crates/exchange/tests are what is judged, so what continuous integration compares with is what
these parsers have accepted:

    python judge.py [--megatron CHECKOUT] [--nanotron CHECKOUT] [--only PROJECT] [--exports DIRECTORY] [--json DIRECTORY]

With `--exports` it is instead what the tests of fifty plans for each project have written there:

    SHARDLOOM_EXPORTS=DIRECTORY cargo test -p shardloom-exchange --test suite fifty

A project that cannot be imported is said to be missing, and the exit status is 1 if anything was refused or missing.
`--json` keeps the configuration that torchtitan writes of its own, which `shardloom import` reads.
"""

import argparse
import csv
import importlib.abc
import importlib.machinery
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "crates/exchange/tests/suite/snapshots"
PROJECTS = ["megatron", "torchtitan", "deepspeed", "nanotron", "accelerate"]


def golden():
    """Yields (case, project, files) of each golden file that is no refusal."""
    paths = sorted(GOLDEN.glob("suite__golden__*.snap"))
    if not paths:
        sys.exit(f"there are no golden files in {GOLDEN}")
    for path in paths:
        case, project = path.stem.removeprefix("suite__golden__").rsplit("_", 1)
        text = path.read_text().split("---\n", 2)[2]
        if text.startswith("refused"):
            continue
        parts = re.split(r"^==> (.*)\n", text, flags=re.M)[1:]
        files = dict(zip(parts[::2], parts[1::2]))
        last = parts[-2]
        files[last] = re.sub(r"^unsaid: .*\n?", "", files[last], flags=re.M)
        yield case, project, files


def exported(directory):
    """Yields the same of each folder of a directory."""
    folders = sorted(path for path in pathlib.Path(directory).iterdir() if path.is_dir())
    if not folders:
        sys.exit(f"there is nothing in {directory}")
    for folder in folders:
        case, project = folder.name.rsplit("_", 1)
        yield case, project, {path.name: path.read_text() for path in folder.iterdir()}


def devices_of(text):
    return int(re.search(r" on (\d+) devices", text).group(1))


def expect(name, found, wanted):
    if found != wanted:
        raise AssertionError(f"{name} is {found}, and was to be {wanted}")


def judge_megatron(folder, files, options):
    """The script is run with a torchrun that only reads the arguments, by Megatron-LM's parser."""
    (folder / "bin").mkdir()
    torchrun = folder / "bin/torchrun"
    torchrun.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" --arguments "$@"\n')
    torchrun.chmod(0o755)
    world = str(devices_of(files["train.sh"]))
    environment = {
        **os.environ,
        "PATH": f"{folder}/bin:{os.environ['PATH']}",
        "WORLD_SIZE": world,
        "MEGATRON": options.megatron,
    }
    done = subprocess.run(
        ["bash", folder / "train.sh"], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise AssertionError(done.stderr.strip().splitlines()[-1])
    return done.stdout.strip().splitlines()[-1]


def read_arguments(words):
    """What stands in for torchrun: parses and validates, without a device."""
    import typing

    import typing_extensions

    # Megatron-LM wants Python 3.12, of which it needs no more than this.
    if not hasattr(typing, "override"):
        typing.override = typing_extensions.override
    import torch

    # Without a device there is nothing to ask for its generation.
    if not torch.cuda.is_available():
        torch.cuda.get_device_capability = lambda *_: (9, 0)
        torch.cuda.get_device_properties = lambda *_: argparse.Namespace(
            major=9, minor=0, multi_processor_count=132
        )
    sys.path.insert(0, os.environ["MEGATRON"])
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout
    from megatron.training.arguments import parse_args, validate_args

    sys.argv = ["pretrain_gpt.py", *words[words.index("pretrain_gpt.py") + 1 :]]
    arguments = parse_args()
    validate_args(arguments)
    layout = arguments.pipeline_model_parallel_layout
    if layout is not None:
        stages = PipelineParallelLayerLayout(layout, arguments.pipeline_model_parallel_size)
        stages.validate_layer_layout(arguments.num_layers, None)
    widths = f"dp {arguments.data_parallel_size}, tp {arguments.tensor_model_parallel_size}"
    print(f"{widths}, pp {arguments.pipeline_model_parallel_size}, layout {layout}")


def judge_torchtitan(folder, files, options):
    import torchtitan.components.quantization.float8 as float8
    from torchtitan.config.manager import ConfigManager

    # Without a device there is nothing to ask for its generation.
    float8.has_cuda_capability = lambda *_: True
    sys.path.insert(0, str(folder))
    sys.modules.pop("shardloom_plan", None)
    try:
        config = ConfigManager().parse_args(["--module", "shardloom_plan", "--config", "plan"])
    finally:
        sys.path.remove(str(folder))
    parallelism = config.parallelism
    widths = (
        parallelism.data_parallel_replicate_degree
        * parallelism.data_parallel_shard_degree
        * parallelism.tensor_parallel_degree
        * parallelism.context_parallel_degree
        * parallelism.pipeline_parallel_degree
    )
    expect("the product of widths", widths, devices_of(files["shardloom_plan.py"]))
    if options.json:
        text = json.dumps(config.to_dict()) + "\n"
        (pathlib.Path(options.json) / f"{folder.name}.json").write_text(text)
    if "schedule.csv" not in files:
        return parallelism.pipeline_parallel_schedule
    microbatches = config.training.local_batch_size // parallelism.pipeline_parallel_microbatch_size
    stages = len(parallelism.module_fqns_per_model_part)
    return judge_table(folder / "schedule.csv", parallelism, stages, microbatches)


def judge_table(path, parallelism, stages, microbatches):
    """PyTorch loads the table, adds communication, and simulates it, which finds deadlocks."""
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
    from torchtitan.distributed.pipeline_parallel import _get_pp_rank_to_stage_indices_mapping

    ranks = parallelism.pipeline_parallel_degree
    schedule = object.__new__(_PipelineScheduleRuntime)
    # What the constructor would set that needs processes.
    schedule.pipeline_order = {}
    schedule.pp_group_size, schedule._num_stages = ranks, stages
    schedule._n_microbatches, schedule._stages = microbatches, []
    schedule._defer_pp_recv, schedule._max_active_stages = False, 3
    schedule._unshard_lookahead, schedule._defer_reduce_grad_wait = "full", False
    schedule._max_outstanding_sends = None
    schedule._load_csv(str(path))
    name = parallelism.pipeline_parallel_schedule
    for rank in range(ranks):
        held = {s for s, at in schedule.stage_index_to_group_rank.items() if at == rank}
        built = set(_get_pp_rank_to_stage_indices_mapping(rank, ranks, name, stages))
        expect(f"what rank {rank} holds in the table", held, built)
    # The simulation knows passes and messages; what is gathered and reduced beside them it refuses.
    beside = ("UNSHARD", "RESHARD", "REDUCE_GRAD", "WAIT_REDUCE_GRAD")
    for rank, actions in schedule.pipeline_order_with_comms.items():
        apart = [part for action in actions for part in action.sub_actions or (action,)]
        kept = [action for action in apart if action.computation_type.value not in beside]
        schedule.pipeline_order_with_comms[rank] = kept
    steps = schedule._simulate()
    with open(path, newline="") as table:
        count = sum(len(row) for row in csv.reader(table))
    return f"{count} actions, simulated in {max(map(len, steps.values()))} steps with communication"


def judge_deepspeed(folder, files, options):
    import deepspeed.runtime.config
    from deepspeed.runtime.config import DeepSpeedConfig

    # Processes are not started to read a file.
    deepspeed.runtime.config.dist.get_rank = lambda *_: 0
    settings = json.loads(files["deepspeed.json"])
    tensor = settings.get("tensor_parallel", {}).get("autotp_size", 1)
    world = devices_of("\n".join(settings["_comment"]))

    class Units:
        """As DeepSpeed asks for it: who is a replica of whom."""

        @staticmethod
        def get_data_parallel_world_size():
            return world // tensor

    os.environ.update(WORLD_SIZE=str(world), RANK="0")
    config = DeepSpeedConfig(str(folder / "deepspeed.json"), mpu=Units())
    expect("train_batch_size", config.train_batch_size, settings["train_batch_size"])
    return f"ZeRO {config.zero_config.stage}, accumulation {config.gradient_accumulation_steps}"


class Kernels(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for packages of kernels that are not installed."""

    NAMES = ("flash_attn", "flash_attn_2_cuda", "grouped_gemm", "functorch_dim", "datatrove")

    def find_spec(self, name, path, target=None):
        if name.split(".")[0] not in self.NAMES:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = unittest.mock.MagicMock(name=spec.name)
        module.__spec__, module.__path__, module.__name__ = spec, [], spec.name
        module.__version__ = "2.8.0"
        return module

    def exec_module(self, module):
        pass


def judge_nanotron(folder, files, options):
    sys.path.insert(0, str(pathlib.Path(options.nanotron) / "src"))
    # Kernels need a device; the configuration does not need them.
    sys.meta_path.append(Kernels())
    from nanotron.config import get_config_from_file

    config = get_config_from_file(str(folder / "nanotron.yaml"))
    parallelism = config.parallelism
    widths = parallelism.dp * parallelism.pp * parallelism.tp * parallelism.context_parallel_size
    expect("dp x pp x tp x cp", widths, devices_of(files["nanotron.yaml"]))
    return f"{config.global_batch_size} samples, {type(parallelism.pp_engine).__name__}"


def judge_accelerate(folder, files, options):
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils.launch import prepare_extend_env_parallelism_config

    import torch

    # As many devices as are asked for, on this machine.
    torch.cuda.is_available, torch.cuda.device_count = (lambda: True), (lambda: 8)
    words = ["--config_file", str(folder / "accelerate.yaml"), "train.py"]
    arguments, _, mixed = _validate_launch_command(launch_command_parser().parse_args(words))
    said = f"{arguments.num_processes} processes, {arguments.mixed_precision}"
    if not arguments.use_parallelism_config:
        return said
    environment = prepare_extend_env_parallelism_config(arguments, {})
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        config = ParallelismConfig()
    finally:
        os.environ.clear()
        os.environ.update(before)
    expect("the product of widths", config.total_size, devices_of(files["accelerate.yaml"]))
    return f"{said}, {config}"


def main():
    if sys.argv[1:2] == ["--arguments"]:
        read_arguments(sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megatron", default="Megatron-LM", help="a checkout of Megatron-LM")
    parser.add_argument("--nanotron", default="nanotron", help="a checkout of nanotron")
    parser.add_argument("--only", choices=PROJECTS, help="judge for this project only")
    parser.add_argument("--exports", help="a folder with what was exported, in place of the golden files")
    parser.add_argument("--json", help="a folder for the configurations that torchtitan writes")
    options = parser.parse_args()
    failed, judged = 0, {}
    print("| plan | project | read as |\n| --- | --- | --- |")
    for case, project, files in exported(options.exports) if options.exports else golden():
        if options.only not in (None, project):
            continue
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary) / f"{case}_{project}"
            folder.mkdir()
            for name, text in files.items():
                (folder / name).write_text(text)
            try:
                verdict = globals()[f"judge_{project}"](folder, files, options)
            except ImportError as error:
                failed, verdict = failed + 1, f"MISSING: {error}"
            except BaseException as error:
                failed, verdict = failed + 1, f"REFUSED: {type(error).__name__}: {error}"
        judged[project] = judged.get(project, 0) + 1
        print(f"| {case} | {project} | {verdict} |", flush=True)
    print(f"\njudged {judged}; {failed} refused or missing")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
