#!/usr/bin/env bash
# The recipe that would decide it, for a GPU: width 512 at 16 and 32 layers, byte-pair tokens, every rule with rates of
# its own, three paired seeds, 20 tokens per parameter. Nobody has run it at these sizes.
#
#     recipes/decide.sh            # trains for nine minutes, then stops with exit code 124; call it again until it is done
#     recipes/decide.sh 600        # the same for ten hours
#
# What is trained lies in $RUNS; a call goes on where the last one stopped, whatever stopped it. Rates are chosen at the
# two narrow sizes and carried on by a line, which two more runs check at 16x512. The record has each size as soon as
# all of its runs are done. Any of these may be set:
#
#     DATA="--data.dataset HuggingFaceFW/fineweb-edu --data.dataset-config sample-10BT --data.dataset-split train[:10%]"
#     ARMS, SIZES, SEEDS, RUNS, and MORE for any other option of attnres scaling, such as "--compile"
#
# 32x512 at 20 tokens per parameter takes 2.0 billion tokens: the default text, the Python sources of torch, has a few
# million, so give DATA for anything that is to be believed, or less per parameter (SIZES="16x128@1 ...").
set -euo pipefail

minutes=${1:-9}
runs=${RUNS:-runs/decide}
read -ra arms <<< "${ARMS:-residual rms-residual block full rms-block delta:block_size=4}"
read -ra sizes <<< "${SIZES:-16x128 16x256 16x512 32x512}"
read -ra data <<< "${DATA:-}"
read -ra more <<< "${MORE:---precision bfloat16 --model.context 1024 --batch-size 32 --evaluate-every 500 --save-every 500}"

status=0
timeout --signal=TERM --kill-after=60 "${minutes}m" python -m attnres scaling "${arms[@]}" \
    --sizes "${sizes[@]}" --tokens-per-parameter 20 --grid 0.5 1 2 --seeds "${SEEDS:-3}" --workers 1 \
    --data.tokenizer bpe:8192 --out "$runs" --record "$runs/decide.json" "${data[@]}" "${more[@]}" || status=$?
case $status in
    0) echo "done: $runs/decide.json" ;;
    124) echo "$minutes minutes are over and everything is kept: call it again"; exit 124 ;;
    *) exit "$status" ;;
esac
