#!/bin/bash
# A discovery on all hosts of a TPU slice: launch/jobs/tpu_vm.sh NAME ZONE
#
# Not run: no TPU was available. `--coordinator=auto` lets JAX ask the slice for its hosts.
#
# Every host needs this repository in ~/disco with `make install EXTRAS=tpu` done, and the workdir
# on a file system that all of them mount, such as Filestore. On a queued or spot slice, start it
# again when the slice is back: the run goes on from its newest checkpoint.
set -euo pipefail
NAME=$1
ZONE=$2
WORKDIR=${WORKDIR:-/mnt/runs/disco57}
CONFIG=${CONFIG:-launch/configs/disco57.py}

gcloud compute tpus tpu-vm ssh "$NAME" --zone="$ZONE" --worker=all --command="
    cd disco &&
    .venv/bin/python -m launch.discover --coordinator=auto --workdir='$WORKDIR' --config='$CONFIG'"
