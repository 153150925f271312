#!/bin/bash
# Trains on two machines with four GPUs each; submit with `sbatch docs/slurm.sh`. What
# follows the name, such as --set optim.lr=0.1, goes to `tailshift train`.
# Every process has a GPU. After a pre-emption or at the time limit the run is saved,
# its processes end with exit code 75, and the job is put back into the queue, from
# where it resumes. SLURM_NTASKS_PER_NODE must be set: it says how many there are.
#SBATCH --job-name=tailshift
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=tailshift-%j.log

recipe=${RECIPE:-imagenet_lt_lade_180ep}
output=${OUTPUT:-runs/$recipe}  # on a file system that all machines share

# SIGTERM is for the processes: this script waits until they have saved the run.
trap : TERM

srun tailshift train "$recipe" --output "$output" --resume "$@" &
step=$!
wait "$step"
code=$?
while kill -0 "$step" 2>/dev/null; do  # a signal has ended the waiting, not the step
  wait "$step"
  code=$?
done

if [ "$code" -eq 75 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
