#!/usr/bin/env bash
# A whole study in a few minutes: the simulated example, inspected, trained, predicted, learned without labels,
# trained from that, compared. Everything is written to one new folder, or to demo/, which is replaced.
set -euo pipefail

out=${1:-demo}
study=$out/study

step() { printf '\n== %s\n' "$1"; }

if [ "$out" != demo ] && [ -e "$out" ]; then
    echo "'$out' exists: name a folder that does not, or none for demo/, which is replaced" >&2
    exit 73
fi
rm -rf -- "$out"

step "The example: simulated samples whose communities follow a pH"
aam-launch example --output-dir "$study"

step "Inspect: what is wrong or noteworthy, before any training"
aam-launch inspect "$study/table.biom" --metadata "$study/metadata.tsv" --metadata-column ph

step "Train: kernel and forest predict the pH of subjects that they have not seen"
aam-launch train --table "$study/table.biom" \
    --metadata "$study/metadata.tsv" --metadata-column ph --group-column subject \
    --taxonomy "$study/taxonomy.tsv" --output-dir "$out/ph"

step "Predict: the model and a table, nothing else"
aam-launch predict --model "$out/ph" --table "$study/table.biom" --output "$out/predictions.tsv"

step "Pretrain: masked nucleotides and UniFrac, no labels"
aam-launch pretrain --table "$study/table.biom" --tree "$study/tree.nwk" \
    --epochs 30 --embedding-dim 64 --output-dir "$out/pretrain"

step "Train the transformer: the pH again, starting from the pretrained encoder"
aam-launch train --table "$study/table.biom" \
    --metadata "$study/metadata.tsv" --metadata-column ph --group-column subject \
    --pretrained-encoder "$out/pretrain" --freeze-base --epochs 60 --output-dir "$out/transformer"

step "Compare the two runs on the samples that both predict"
aam-launch compare "$out/ph" "$out/transformer"

printf '\nThe report: %s\n' "$(cd "$out/ph" && pwd)/report.html"
