#!/usr/bin/env bash
# The ladder of docs/EVIDENCE.md: every rule up to 1.8 million parameters, on 20 tokens per parameter or 10, on a CPU.
#
#     recipes/ladder.sh 16          # 16 layers of width 16 to 96: some 90 hours of one core with AVX-512
#     recipes/ladder.sh 16-20       # width 48 and 64 to 20 tokens per parameter, too: 16 hours behind 16
#     recipes/ladder.sh 32          # 32 layers of width 12 to 32: 18 hours
#     recipes/ladder.sh 32-20       # width 24, 32 and 48 to 20 tokens per parameter, too, and 56 and 64 to 10:
#                                   # 70 hours behind 32, reckoned
#
# Stop it with Ctrl-C or SIGTERM; the same command goes on, and on another machine with results/ladder-LAYERS.json
# alone. 16-20 goes on from the runs of 16 where they are. RUNS (runs) is where runs lie, WORKERS (1) how many at a time.
# Where there is a GPU, recipes/ladder/on_gpu.py trains 16x80 and 16x96 there in fifteen minutes, the checks of their
# rates apart, and 16 of the 21 runs of 32x48 in eight.
set -euo pipefail

ladder=${1:?give the layers: 16 or 32, or 16-20 or 32-20}
runs=${RUNS:-runs}
checks=5
case $ladder in
    16) sizes=(16x16 16x24 16x32 16x48@10 16x64@10 16x80@10 16x96@10) ;;
    16-20)
        sizes=(16x16 16x24 16x32 16x48 16x64 16x80@10 16x96@10)
        checks=1
        if [ ! -d "$runs/ladder-16-20" ] && [ -d "$runs/ladder-16" ]; then
            rm -rf "$runs/ladder-16-20.partial"
            cp -r "$runs/ladder-16" "$runs/ladder-16-20.partial"
            mv "$runs/ladder-16-20.partial" "$runs/ladder-16-20"
        fi
        python recipes/ladder/twice.py "$runs/ladder-16-20" results/ladder-16-20.json 16x48 16x64
        ;;
    32)
        sizes=(32x12 32x16 32x24@10 32x32@10)
        checks=2
        ;;
    32-20)
        sizes=(32x12 32x16 32x24 32x32 32x48 32x56@10 32x64@10)
        checks=0
        python recipes/ladder/compiled.py "$runs/ladder-32-20" results/ladder-32-20.json \
            32x24 32x32 32x48 32x56@10 32x64@10
        ;;
    *) echo "$ladder: the ladder has 16 or 32 layers, or is 16-20 or 32-20" >&2; exit 2 ;;
esac
exec python -m attnres scaling residual rms-residual block full rms-block delta:block_size=4 interlayer \
    --sizes "${sizes[@]}" --heads 1 --tokens-per-parameter 20 --grid 1 2 4 --checks "$checks" --seeds 3 --batch-size 8 \
    --workers "${WORKERS:-1}" --out "$runs/ladder-$ladder" --record "results/ladder-$ladder.json"
