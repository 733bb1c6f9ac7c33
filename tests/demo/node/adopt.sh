# shellcheck shell=bash
# `calico-ipam adopt` on the running node, after the loss of the blocks. The steps of the demo source this file after
# pods.sh, while the pods of $work/pods.yaml run.

# Deletes all blocks under the running pods, as a restore of an older datastore does. Another pod would now get an
# address of a running one.
lose_blocks() {
    run kubectl delete ipamblocks --all | sed -n '1p; $p'
    has_taken 0
}

# Prints the name of the host interface of a pod: cali, and the beginning of the SHA-1 of its namespace and name.
host_interface() { echo "cali$(printf '%s' "shop.$1" | sha1sum | cut -c 1-11)"; }

# Prints the number of rows of the report with a result.
adopted_as() { jq --arg result "$1" '[.addresses[] | select(.result == $result)] | length' $work/adopt.json; }

adopt() { calico-ipam adopt --node $node -o json "$@" >$work/adopt.json; }

adopt_all() {
    local before nameless
    before=$(kubectl -n shop get pods -o json | jq -r '.items[].status.podIP' | sort)
    # An interface as upstream's plugin leaves it: the container ID comes from containerd alone.
    nameless=$(host_interface pod-1)
    run ip link set dev "$nameless" alias upstream
    lose_blocks
    adopt --dry-run
    echo "    dry run: $(adopted_as 'would be adopted') would be adopted, $(adopted_as conflict) conflicts"
    has_taken 0
    run calico-ipam adopt --node $node | tail -3
    has_taken "$(wc -l <<<"$before")"
    run calico-ipam check
    adopt
    [ "$(adopted_as adopted) $(adopted_as conflict)" = "0 0" ]
    # A new pod gets an address of its own.
    pods late | kubectl apply -f - >/dev/null
    wait_for 60 running 1 late
    not grep -qFx "$(address late)" <<<"$before"
    echo "    a new pod has $(address late), which no other pod has"
    kubectl -n shop delete pod late --wait=false >/dev/null
    wait_for 60 gone late
}
