#!/bin/bash
#SBATCH --job-name=predict
#SBATCH --partition=cluster
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=1:00:00
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
# Predict on one GPU:
#     sbatch slurm/predict.sh --model FOLDER --table TABLE --output TSV
command -v module >/dev/null || . /etc/profile
module load singularitypro rocm || exit 69
export AAM_LAUNCH_SITE="${AAM_LAUNCH_SITE:-cosmos}"
exec aam-launch job predict "$@"
