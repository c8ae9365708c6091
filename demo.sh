#!/usr/bin/env bash
# A study in about a minute: the simulated example, inspected, trained, compared with its known truth, predicted,
# and a small encoder pretrained. Everything is written to one new folder, or to demo/, which is replaced.
#     ./demo.sh [FOLDER]               the study
#     ./demo.sh transformer [FOLDER]   then the transformer on it, in minutes
set -euo pipefail

part=study
if [ "${1:-}" = transformer ]; then part=transformer && shift; fi
out=${1:-demo}
study=$out/study

step() { printf '\n== %s\n' "$1"; }

if [ "$part" = transformer ]; then
    step "Pretrain: masked nucleotides and UniFrac, no labels"
    aam-launch pretrain --table "$study/table.biom" --tree "$study/tree.nwk" \
        --epochs 30 --embedding-dim 64 --output-dir "$out/encoder" --overwrite

    step "Train the transformer: the response again, from the pretrained encoder"
    aam-launch train "$study/table.biom" "$study/metadata.tsv" response --group-column subject \
        --pretrained-encoder "$out/encoder" --freeze-base --epochs 60 --output-dir "$out/transformer" --overwrite

    step "Compare it with kernel and forest on the samples that both predict"
    aam-launch compare "$out/response" "$out/transformer"
    exit
fi

if [ "$out" != demo ] && [ -e "$out" ]; then
    echo "'$out' exists: name a folder that does not, or none for demo/, which is replaced" >&2
    exit 73
fi
rm -rf -- "$out"

step "The example: a simulated study, in which three ASVs decide a response"
aam-launch example --planted 3 --output-dir "$study"

step "Inspect: what is wrong or noteworthy, before any training"
aam-launch inspect "$study/table.biom" "$study/metadata.tsv" response

step "Train: kernel and forest predict the response of subjects that they have not seen"
aam-launch train "$study/table.biom" "$study/metadata.tsv" response --group-column subject \
    --taxonomy "$study/taxonomy.tsv" --output-dir "$out/response"
report=$(cd "$out/response" && pwd)/report.html
printf '\nThe report, to open in a browser: %s\n' "$report"

step "Truth: are the three ASVs those that the report lists?"
python - "$study/truth.json" "$out/response/importance.tsv" <<'END'
import csv, json, sys

planted = set(json.load(open(sys.argv[1]))["planted"])
rows = csv.DictReader(open(sys.argv[2]), delimiter="\t")
listed = {row["feature-id"] for row in rows if float(row["q_conditional"]) < 0.1}
print(f"{len(planted & listed)} of {len(planted)} are among the {len(listed)} listed ASVs (q < 0.1)")
sys.exit(not planted <= listed)
END

step "Predict: the model and a table, nothing else"
aam-launch predict --model "$out/response" --table "$study/table.biom" --output "$out/predictions.tsv"

step "Pretrain: a small encoder, which learns without labels"
aam-launch pretrain --table "$study/table.biom" --tree "$study/tree.nwk" \
    --epochs 2 --embedding-dim 32 --output-dir "$out/pretrain"

cat <<END

The report: $report
Next: . .venv/bin/activate    then aam --help, with your own table
      make demo-transformer   the transformer on this study, in minutes
END
