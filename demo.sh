#!/usr/bin/env bash
# A whole study in a few minutes: simulated, learned without labels, trained, predicted, compared
# with a random forest and reported. Everything is written to one folder, demo/ by default, which
# is replaced.
set -euo pipefail

out=${1:-demo}
study=$out/study

step() { printf '\n== %s\n' "$1"; }

rm -rf -- "$out"

step "A study whose truth is known: ASVs that prefer a pH, sites that favour clades"
aam-launch simulate --output-dir "$study" --samples 120 --asvs 400 --richness 60 --seed 7

step "Pretrain: masked nucleotides and UniFrac, no labels"
aam-launch pretrain --table "$study/table.biom" --tree "$study/tree.nwk" \
    --output-dir "$out/pretrain" --epochs 30 --embedding-dim 64 --seed 7

step "Train: predict the pH, starting from the pretrained encoder"
aam-launch train --table "$study/table.biom" --tree "$study/tree.nwk" \
    --metadata "$study/metadata.tsv" --metadata-column ph \
    --pretrained-encoder "$out/pretrain" --freeze-base --output-dir "$out/train" --epochs 60 --seed 7

step "Predict: the model and a table, nothing else"
aam-launch predict --model "$out/train" --table "$study/table.biom" \
    --output "$out/predictions.tsv"

step "Evaluate the samples that were held out"
aam-launch evaluate --predictions "$out/train/predictions.tsv" \
    --metadata "$study/metadata.tsv" --metadata-column ph

step "Baseline: a random forest on the same split"
aam-launch baseline --table "$study/table.biom" \
    --metadata "$study/metadata.tsv" --metadata-column ph \
    --splits "$out/train/splits.tsv" --output-dir "$out/train/baseline" --seed 7

step "Report"
aam-launch report --run-dir "$out/train" --color-by site

printf '\nThe report: %s\n' "$(cd "$out/train" && pwd)/report.html"
