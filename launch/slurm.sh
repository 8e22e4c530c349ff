#!/bin/bash
# One task a GPU, without a launcher between SLURM and the ranks, so that a signal reaches them.
# Ten minutes before its time is over the job gets SIGTERM: it saves after the current step, ends
# with code 0, and is queued again until the run is done. A preempted job does the same.
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@600
#SBATCH --requeue
#SBATCH --open-mode=append

RUN=/shared/runs/7b
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1) MASTER_PORT=29500
export WORLD_SIZE=$SLURM_NTASKS LOCAL_WORLD_SIZE=$SLURM_NTASKS_PER_NODE
export ACCELERATE_USE_FSDP=true FSDP_VERSION=2 # as launch/fsdp2.yaml; leave out for replicated weights

# Single quotes: each task fills in its own number. exec: the signal goes to sps, not to a shell.
srun bash -c 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID
  exec sps train recipes/paper/qwen2.5-math-7b_10k_sps.yaml --out '"$RUN"' --resume'

# A run that was stopped says so in the last line of its record; one that is done or failed does not.
tail -n 1 "$RUN/metrics.jsonl" | grep -q '"kind": "stopped"' && scontrol requeue "$SLURM_JOB_ID"
