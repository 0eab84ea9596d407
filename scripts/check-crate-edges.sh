#!/usr/bin/env bash
# Fails if a workspace crate uses another that scripts/crate-edges.txt does not allow it.
set -euo pipefail
cd "$(dirname "$0")/.."

package() { case "$1" in shardloom) echo shardloom ;; *) echo "shardloom-$1" ;; esac; }

failed=0
while IFS=: read -r crate allowed; do
  case "$crate" in "" | \#*) continue ;; esac
  used=$(cargo tree --quiet --offline --package "$(package "$crate")" --edges normal --depth 1 --prefix none --format '{p}' \
    | awk 'NR > 1 && $1 ~ /^shardloom(-|$)/ { sub(/^shardloom-/, "", $1); print $1 }')
  for other in $used; do
    case " $allowed " in
      *" $other "*) ;;
      *) echo "crate $crate uses $other, which scripts/crate-edges.txt does not allow"; failed=1 ;;
    esac
  done
done < scripts/crate-edges.txt

for manifest in crates/*/Cargo.toml; do
  crate=$(basename "$(dirname "$manifest")")
  grep -q "^$crate:" scripts/crate-edges.txt || { echo "crate $crate is missing in scripts/crate-edges.txt"; failed=1; }
done
exit "$failed"
