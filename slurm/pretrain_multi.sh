#!/bin/bash
#SBATCH --job-name=pretrain_multi
#SBATCH --partition=cluster
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=4
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@600
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
# Pretrain on four nodes:
#     sbatch slurm/pretrain_multi.sh --table TABLE --tree TREE --output-dir FOLDER
command -v module >/dev/null || . /etc/profile
module load singularitypro rocm || exit 69
export AAM_LAUNCH_SITE="${AAM_LAUNCH_SITE:-cosmos}"
exec aam-launch job pretrain "$@"
