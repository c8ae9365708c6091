#!/bin/bash
#SBATCH --job-name=test_runner
#SBATCH --partition=cluster
#SBATCH --exclusive
#SBATCH --time=1:00:00
#SBATCH --output=%x-%j.out
# `aam check` and the tests of the marker rocm, in the image: sbatch slurm/test_runner.sh
command -v module >/dev/null || . /etc/profile
module load singularitypro rocm || exit 69
export AAM_LAUNCH_SITE="${AAM_LAUNCH_SITE:-cosmos}"
images=${AAM_IMAGE_DIR:-/cosmos/vast/scratch/$USER/containers} status=0
aam-launch check --device cuda || exit
report=$(singularity exec --cleanenv --no-home --pwd "$PWD" --bind "$PWD" --bind "$images" \
    "$images/rocm63.sif" env PYTHONPATH="$PWD:$images/pytest" PYTHONDONTWRITEBYTECODE=1 \
    python -m pytest -m rocm -rs -p no:cacheprovider tests/numerics/test_rocm_compatibility.py) || status=$?
printf '%s\n' "$report"
[[ $status != 0 || $report == *" passed"* ]] ||
    { echo "test_runner: nothing was tested; the reasons stand above" >&2; exit 69; }
exit "$status"
