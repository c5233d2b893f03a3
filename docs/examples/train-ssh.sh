#!/usr/bin/env bash
# ssh: train-ssh.sh RECIPE ADDRESS... starts torchrun on each host. The current folder must be the same shared folder there.
# Variables: PROCESSES on each host (1), PYTHON (python), INTERFACE of the addresses for gloo (eth0).
set -euo pipefail
recipe=$1
shift
first=$1 count=$# jobs=()
for host in "$@"; do
    is_host=$([ "$host" = "$first" ] && echo 1 || echo 0)
    # -tt: the remote processes end when this script is interrupted
    ssh -tt "$host" "cd '$PWD' && TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 GLOO_SOCKET_IFNAME=${INTERFACE:-eth0} \
        ${PYTHON:-python} -m torch.distributed.run --nnodes $count --nproc-per-node ${PROCESSES:-1} --max-restarts 3 \
        --rdzv-backend c10d --rdzv-id nmt --rdzv-endpoint $first:29400 --rdzv-conf is_host=$is_host --local-addr $host \
        -m nmt_cli train '$recipe'" </dev/null &
    jobs+=($!)
done
code=0
for job in "${jobs[@]}"; do
    wait "$job" || code=$?
done
exit "$code"
