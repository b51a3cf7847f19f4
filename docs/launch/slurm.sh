#!/bin/bash
# Several machines under SLURM: sbatch docs/launch/slurm.sh settings.json MODEL
# Run it from the folder of script.py, which all machines must see under the same path.
#SBATCH --job-name=training-pro
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --time=08:00:00
# Two minutes before the time limit SLURM sends SIGTERM: the run saves a full checkpoint, and the next job resumes it.
#SBATCH --signal=TERM@120
#SBATCH --requeue
set -euo pipefail

settings=${1:?"usage: sbatch docs/launch/slurm.sh settings.json MODEL"}
model=${2:?"usage: sbatch docs/launch/slurm.sh settings.json MODEL"}
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=110 # torchrun's own limit is 30 seconds, too short for a large checkpoint

# --resume continues after a requeue, and begins a new run if there is none of this name.
srun torchrun \
    --nnodes "$SLURM_NNODES" --nproc_per_node "$SLURM_GPUS_ON_NODE" \
    --rdzv_id "$SLURM_JOB_ID" --rdzv_backend c10d --rdzv_endpoint "$first:29500" \
    script.py train "$settings" --model "$model" --resume
