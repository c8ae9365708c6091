#!/bin/bash
#SBATCH --job-name=stage_data
#SBATCH --partition=cluster
#SBATCH --time=0:30:00
#SBATCH --output=%x-%j.out
# Copy files to a folder of the node's own disk, each verified: FOLDER FILE...
exec python3 -m launcher.slurm.staging "$@"
