#!/bin/bash
#SBATCH --job-name=test_runner
#SBATCH --partition=cluster
#SBATCH --exclusive
#SBATCH --time=1:30:00
#SBATCH --output=%x-%j.out
# Measure all GPUs of a node: sbatch slurm/test_runner.sh --output-dir FOLDER
command -v module >/dev/null || . /etc/profile
module load singularitypro rocm || exit 69
export AAM_LAUNCH_SITE="${AAM_LAUNCH_SITE:-cosmos}"
exec aam-launch acceptance --device cuda "$@"
