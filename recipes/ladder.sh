#!/usr/bin/env bash
# The ladder of docs/EVIDENCE.md: every rule at sizes up to a million parameters, at the compute-optimal point, on a CPU.
#
#     recipes/ladder.sh 16          # 16 layers of width 16 to 64: 24 hours of one core with AVX-512
#     recipes/ladder.sh 32          # 32 layers of width 12 to 32: by an estimate 24; the three smallest sizes took 9
#
# Stop it with Ctrl-C or SIGTERM; the same command goes on, and on another machine with results/ladder-LAYERS.json
# alone. RUNS (runs) is where the runs lie, WORKERS (1) how many run at a time.
set -euo pipefail

layers=${1:?give the layers: 16 or 32}
case $layers in
    16) sizes=(16x16 16x24 16x32 16x48@10 16x64@10) ;;
    32) sizes=(32x12 32x16 32x24@10 32x32@10) ;;
    *) echo "$layers: the ladder has 16 or 32 layers" >&2; exit 2 ;;
esac
exec python -m attnres scaling residual rms-residual block full rms-block delta:block_size=4 interlayer \
    --sizes "${sizes[@]}" --heads 1 --tokens-per-parameter 20 --grid 1 2 4 --checks 2 --seeds 3 --batch-size 8 \
    --workers "${WORKERS:-1}" --out "${RUNS:-runs}/ladder-$layers" --record "results/ladder-$layers.json"
