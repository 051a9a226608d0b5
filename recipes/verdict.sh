#!/usr/bin/env bash
# The verdict of docs/VERDICT.md: one setting's arms, one after the other, each into the record as soon as it is done.
#
#     recipes/verdict.sh shallow-short                                # or deep-short; every arm that takes part
#     recipes/verdict.sh shallow-long residual interlayer block ...   # or deep-long; the arms of VERDICT.md's change 8
#     EQUAL=seconds recipes/verdict.sh deep-short residual interlayer block ...   # equal wall clock, on a quiet machine
#
# Stop it in any way; the same command goes on, and with results/verdict-SETTING.json alone on another machine, too:
# it begins again with the arm that the record does not have. RUNS (runs) is where the runs lie, WORKERS (1) how many
# run at a time.
set -euo pipefail

setting=${1:?give a setting: shallow-short, shallow-long, deep-short or deep-long}
shift
case $setting in
    shallow-short) size=(--model.layers 16 --model.dim 32 --steps 192) ;;
    shallow-long) size=(--model.layers 16 --model.dim 32 --steps 960 --tuning-seeds 1) ;;
    deep-short) size=(--model.layers 48 --model.dim 16 --steps 144) ;;
    deep-long) size=(--model.layers 48 --model.dim 16 --steps 720 --tuning-seeds 1) ;;
    *) echo "$setting: the settings are shallow-short, shallow-long, deep-short and deep-long" >&2; exit 2 ;;
esac
if [ $# = 0 ]; then
    case $setting in
        shallow-short) searched=(block:block_size=8 rms-block:block_size=2) ;;
        deep-short) searched=(block:block_size=12 rms-block:block_size=12) ;;
        *) echo "$setting: give its arms, residual first (docs/VERDICT.md, change 8)" >&2; exit 2 ;;
    esac
    set -- residual interlayer block rms-block "${searched[@]}" rms-residual rms-full delta:block_size=4 x0 haares \
        rms-block:reads=qkv-gate-up block:reads=qkv-gate-up
fi

equal=${EQUAL:-operations}
name=verdict-$setting
[ "$equal" = operations ] || name+=-$equal
run() {
    python -m attnres ablate "$@" --data.dataset sympy --equal "$equal" --grid 1 2 4 --wider 20 \
        --seed 100 --seeds 4 --embedding-stds 1 --batch-size 8 --model.heads 1 "${size[@]}" \
        --workers "${WORKERS:-1}" --out "${RUNS:-runs}/$name" --record "results/$name.json"
}
if [ "$equal" = seconds ]; then  # the steps of all arms are timed by turns, so they are one command
    run "$@"
    exit
fi
arms=("$1")
shift
for arm; do
    arms+=("$arm")
    run "${arms[@]}"
done
