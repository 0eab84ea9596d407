#!/bin/sh
# Makes the Python environment the PyTorch scripts run in, outside the repository.
#
#   benches/peer/setup.sh [DIRECTORY]      default: ~/.cache/shardloom-peer
#
# PyPI's Linux wheel of torch brings CUDA libraries along: about 3 GB to load, 5.5 GB on disk. Where
# PyTorch's own index can be reached, its CPU wheel is far smaller:
#
#   PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu benches/peer/setup.sh
set -eu

here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd -P)
repository=$(CDPATH= cd -- "$here/../.." && pwd -P)
target=${1:-$HOME/.cache/shardloom-peer}

resolved=$(python3 -c 'import os, sys; print(os.path.realpath(sys.argv[1]))' "$target")
case "$resolved/" in
"$repository"/*)
    echo "setup.sh: $target is inside the repository; choose a directory outside it" >&2
    exit 2
    ;;
esac

python3 -m venv "$target"
"$target/bin/python" -m pip install --quiet --requirement "$here/requirements.txt"
"$target/bin/python" -c 'import torch; print("torch", torch.__version__)'
echo "$target/bin/python"
