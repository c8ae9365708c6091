#!/bin/bash
#SBATCH --job-name=train
#SBATCH --partition=cluster
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@600
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
# Train on one GPU:
#     sbatch slurm/train.sh --table TABLE --metadata TSV --metadata-column NAME --output-dir FOLDER
command -v module >/dev/null || . /etc/profile
module load singularitypro rocm || exit 69
export AAM_LAUNCH_SITE="${AAM_LAUNCH_SITE:-cosmos}"
exec aam-launch job train "$@"
