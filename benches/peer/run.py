#!/usr/bin/env python3
"""Holds shardloom's training steps against PyTorch's on this machine, and prints a Markdown table.

Ours and theirs take turns, so that whatever else slows the machine slows both; each repeat gives one
ratio, and the median ratio is held against the bar. See `benches/README.md`.
"""

import argparse
import json
import os
import pathlib
import platform
import resource
import shlex
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]

# What our side runs: edit where the command line differs. Words in braces are filled in from the size
# and the options; `{layout}` is the comparison's part below.
OURS = {
    "train": (
        "{shardloom} train gpt:layers={layers},hidden={hidden},heads={heads},seq={seq},vocab={vocab}"
        " {layout} --precision {precision} --global-batch {global_batch} --steps {total_steps} --data {data} --no-clip --json"
    ),
    "eager": "--dp 1",
    "ddp": "--dp 2",
    "fsdp2": "--dp 2 --zero 3",
    "pipeline": "--pp 2 --schedule 1f1b --microbatches 4",
    "ddp_link": "--dp 2",
    "fsdp2_link": "--dp 2 --zero 3",
}

# Highest ratio of our time to theirs, in fp32.
BARS = {
    "eager": 0.85,
    "ddp": 0.75,
    "fsdp2": 0.60,
    "pipeline": 0.75,
    "gloo_allreduce": 0.25,
    "mpi_allreduce": 0.25,
    "ddp_link": 1.0,
    "fsdp2_link": 1.0,
}
# The same in bf16, of every comparison.
BF16_BAR = 1.0

TITLES = {
    "eager": "one rank: PyTorch eager",
    "ddp": "2 ranks: DDP",
    "fsdp2": "2 ranks, ZeRO-3: FSDP2",
    "pipeline": "2 stages, 1F1B, 4 micro-batches",
    "gloo_allreduce": "all-reduce of 64 MiB: Gloo",
    "mpi_allreduce": "all-reduce of 64 MiB: the MPI library",
    "ddp_link": "2 hosts: DDP over Gloo",
    "fsdp2_link": "2 hosts, ZeRO-3: FSDP2 over Gloo",
}

# Comparisons of one collective, which have no model.
ALL_REDUCES = ("gloo_allreduce", "mpi_allreduce")
# Comparisons between two hosts, which `two_hosts.sh` makes.
OVER_LINK = ("ddp_link", "fsdp2_link")
HOSTS = ("slpeera", "slpeerb")

SIZES = {
    "d256": {"layers": 4, "hidden": 256, "heads": 4, "seq": 128, "vocab": 8192, "global_batch": 8},
    "d512": {"layers": 6, "hidden": 512, "heads": 8, "seq": 256, "vocab": 8192, "global_batch": 4},
}

# Others' use of the machine, in cores, from which on a row is marked.
FOREIGN_CORES = 0.1
TIMEOUT_SECONDS = 1800


def measure(command, warmup):
    """Runs a command that prints a JSON object per step. Its median step without the first ones, the
    cores it used and the cores that others used meanwhile (None where the system does not tell)."""
    start, busy, own = time.perf_counter(), busy_seconds(), children_seconds()
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )
    wall = time.perf_counter() - start
    own = children_seconds() - own
    foreign = None if busy is None else max(0.0, busy_seconds() - busy - own) / wall
    steps = step_seconds(done.stdout)
    if done.returncode != 0 or len(steps) <= warmup:
        problem = f"exit status {done.returncode}, {len(steps)} steps printed"
        streams = f"--- stdout\n{done.stdout}--- stderr\n{done.stderr}"
        sys.exit(f"{shlex.join(command)}\n{problem}, more than {warmup} expected\n{streams}")
    return {
        "seconds": statistics.median(steps[warmup:]),
        "cores": own / wall,
        "foreign_cores": foreign,
    }


def step_seconds(stdout):
    """The step times among a command's lines; both sides name them alike."""
    objects = (json.loads(line) for line in stdout.splitlines() if line.startswith("{"))
    return [item["step_seconds"] for item in objects if "step_seconds" in item]


def children_seconds():
    """Processor time of all finished commands."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def busy_seconds():
    """Processor time this machine has spent on anything, or lost to its host; None outside Linux."""
    try:
        with open("/proc/stat", encoding="ascii") as stat:
            user, nice, system, _idle, _wait, irq, soft, steal = map(
                int, stat.readline().split()[1:9]
            )
    except FileNotFoundError:
        return None
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def commands(comparison, size, options):
    """Our command (None where our side is not measured) and theirs."""
    mode = comparison.removesuffix("_link")
    theirs = [options.torch_python, str(HERE / "torch_peer.py"), mode]
    theirs += ["--steps", str(options.steps), "--warmup", str(options.warmup)]
    if comparison in ALL_REDUCES:
        ours = options.allreduce_bench and shlex.split(options.allreduce_bench)
        return ours, theirs if comparison == "gloo_allreduce" else shlex.split(options.mpi_allreduce)
    theirs += ["--precision", options.precision]
    for name, value in SIZES[size].items():
        theirs += [f"--{name.replace('_', '-')}", str(value)]
    if options.peers_only:
        return None, theirs
    values = {
        **SIZES[size],
        "shardloom": shlex.quote(options.shardloom),
        "data": shlex.quote(options.data),
        "total_steps": options.warmup + options.steps,
        "layout": OURS[comparison],
        "precision": options.precision,
    }
    ours = shlex.split(OURS["train"].format(**values))
    return (ours, theirs) if comparison not in OVER_LINK else (ours_on_hosts(ours), on_hosts(theirs))


def ours_on_hosts(command):
    """Our command as one process on each of the two hosts."""
    agent = str(HERE / "two_hosts.sh")
    settings = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_plm_rsh_agent": agent,
    }
    launch = [command[0], "launch", "--hosts", ",".join(f"{host}:1" for host in HOSTS), "--"]
    words = [f"{name}={value}" for name, value in settings.items()] + launch + command[1:]
    return [agent, "on", HOSTS[0], "env", *words]


def on_hosts(command):
    """PyTorch's command as one process on each of the two hosts."""
    agent = shlex.quote(str(HERE / "two_hosts.sh"))
    lines = [
        f"{agent} on {host} env GLOO_SOCKET_IFNAME=wire {shlex.join(command)} --rank {rank}"
        ' --rendezvous "$folder/rendezvous"'
        for rank, host in enumerate(HOSTS)
    ]
    script = f"folder=$(mktemp -d); {lines[1]} & {lines[0]}; status=$?; wait; rm -r $folder; exit $status"
    return ["sh", "-c", script]


def compare(comparison, size, options):
    """All repeats of one comparison, the two sides taking turns at going first."""
    ours, theirs = commands(comparison, size, options)
    repeats = []
    for repeat in range(options.repeats):
        sides = [("ours", ours), ("theirs", theirs)]
        if repeat % 2 == 1:
            sides.reverse()
        repeats.append(
            {
                side: measure(command, options.warmup)
                for side, command in sides
                if command is not None
            }
        )
    return {"comparison": comparison, "size": size, "repeats": repeats}


def table_row(result, precision):
    """A comparison as a row of the table."""
    repeats = result["repeats"]
    milliseconds = {}
    for side in ("ours", "theirs"):
        seconds = [repeat[side]["seconds"] for repeat in repeats if side in repeat]
        milliseconds[side] = f"{1e3 * statistics.median(seconds):.1f}" if seconds else ""
    bar = BARS[result["comparison"]] if precision == "fp32" else BF16_BAR
    ratio = verdict = spread = ""
    if milliseconds["ours"]:
        ratios = [repeat["ours"]["seconds"] / repeat["theirs"]["seconds"] for repeat in repeats]
        median = statistics.median(ratios)
        ratio, spread = f"{median:.2f}", f"{min(ratios):.2f} to {max(ratios):.2f}"
        verdict = "held" if median <= bar else "missed"
    cores = " / ".join(
        f"{statistics.median(repeat[side]['cores'] for repeat in repeats):.1f}"
        for side in ("ours", "theirs")
        if side in repeats[0]
    )
    foreign = foreign_cores(result)
    noise = "unknown" if foreign is None else f"{foreign:.2f}"
    if foreign is not None and foreign > FOREIGN_CORES:
        noise += " (busy)"
    cells = [
        TITLES[result["comparison"]],
        result["size"],
        milliseconds["ours"],
        milliseconds["theirs"],
        ratio,
        spread,
        f"{bar:.2f}",
        verdict,
        cores,
        noise,
    ]
    return "| " + " | ".join(cells) + " |"


def foreign_cores(result):
    """Cores that others used in the worst of a comparison's runs."""
    runs = [run["foreign_cores"] for repeat in result["repeats"] for run in repeat.values()]
    return None if None in runs else max(runs)


def table(results, precision):
    """The results in Markdown."""
    header = [
        "against",
        "size",
        "ours ms",
        "theirs ms",
        "ratio",
        "range",
        "bar",
        "verdict",
        "cores",
        "others' cores",
    ]
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return "\n".join(lines + [table_row(result, precision) for result in results])


def machine(torch_python):
    """What was measured on."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            names = [
                line.split(":", 1)[1].strip() for line in info if line.startswith("model name")
            ]
            model = names[0] if names else model
    except FileNotFoundError:
        pass
    program = "import torch; print(torch.__version__)"
    found = subprocess.run(
        [torch_python, "-c", program], capture_output=True, text=True, check=False
    )
    if found.returncode != 0:
        sys.exit(f"{torch_python} cannot import torch; make it with setup.sh\n{found.stderr}")
    return {"processor": model, "cores": os.cpu_count(), "torch": found.stdout.strip()}


def chosen(text, known, what):
    """A comma-separated choice among known names."""
    names = text.split(",")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"no {what} {unknown[0]}; there are {', '.join(known)}")
    return names


def parsed_options():
    """The command line, checked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--shardloom", default=str(REPOSITORY / "target/release/shardloom"), help="our binary")
    environment = pathlib.Path.home() / ".cache/shardloom-peer/bin/python"
    add("--torch-python", default=str(environment), help="a Python that has PyTorch (see setup.sh)")
    add("--allreduce-bench", help="our command for all-reduces; prints a step_seconds per line")
    add("--mpi-allreduce", help="the MPI library's command for mpi_allreduce, which prints the same")
    add("--data", default=str(REPOSITORY / "crates"), help="text our side trains on")
    on_one = [name for name in BARS if name not in (*OVER_LINK, "mpi_allreduce")]
    add("--only", type=lambda text: chosen(text, BARS, "comparison"), default=on_one)
    add("--sizes", type=lambda text: chosen(text, SIZES, "size"), default=list(SIZES))
    add("--precision", choices=("fp32", "bf16"), default="fp32", help="what both sides compute in")
    add("--repeats", type=int, default=5, help="runs of each side")
    add("--steps", type=int, default=10, help="measured steps of a run")
    add("--warmup", type=int, default=2, help="steps before the measured ones")
    add("--peers-only", action="store_true", help="measure PyTorch alone")
    add("--json", type=pathlib.Path, help="file for every single measurement")
    options = parser.parse_args()
    if options.repeats < 1 or options.steps < 1 or options.warmup < 0:
        parser.error("--repeats and --steps must be at least 1, --warmup at least 0")
    if options.peers_only:
        options.allreduce_bench = None
    elif set(options.only) - set(ALL_REDUCES) and not os.access(options.shardloom, os.X_OK):
        parser.error(
            f"{options.shardloom} is no program: build it with `cargo build --release`,"
            " name it with --shardloom, or measure PyTorch alone with --peers-only"
        )
    if options.precision != "fp32":
        if options.only is on_one:
            options.only = [name for name in on_one if name not in ALL_REDUCES]
        if set(options.only) & set(ALL_REDUCES):
            parser.error(f"--precision {options.precision}: all-reduces are measured in fp32 only")
    if "mpi_allreduce" in options.only and not options.mpi_allreduce:
        parser.error("mpi_allreduce takes --mpi-allreduce COMMAND")
    if set(options.only) & set(OVER_LINK) and not pathlib.Path("/etc/netns", HOSTS[0]).exists():
        parser.error(f"there are no two hosts: make them with {HERE / 'two_hosts.sh'} up")
    return options


def main():
    options = parsed_options()
    where = machine(options.torch_python)
    jobs = []
    for comparison in options.only:
        sizes = ["64 MiB"] if comparison in ALL_REDUCES else options.sizes
        jobs += [(comparison, size) for size in sizes]
    results = []
    for number, (comparison, size) in enumerate(jobs, 1):
        print(f"{number}/{len(jobs)} {comparison} {size}", file=sys.stderr)
        results.append(compare(comparison, size, options))
    print(", ".join(f"{key}: {value}" for key, value in where.items()))
    print(f"{options.precision}, medians of {options.repeats} repeats of {options.steps} steps\n")
    print(table(results, options.precision))
    if options.json:
        record = {"machine": where, "precision": options.precision, "results": results}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
