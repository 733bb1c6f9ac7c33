# shellcheck shell=bash
# The demo's pods, and what is to be seen of them. Sourced by the steps, after node.sh.

# How many pods start together.
many=30

# pods NAME...: as many pods of the demo's image, for this node
pods() {
    for name in "$@"; do
        sed "s/NAME/$name/" tests/demo/node/pod.yaml
    done
}
numbered() { seq -f 'pod-%g' "$1"; }
# count WHAT [NAME]: how many pods are so, of all or of those whose name begins with NAME
count() {
    kubectl -n shop get pods -o json |
        jq --arg name "${2:-}" "[.items[] | select(.metadata.name | startswith(\$name)) | select($1)] | length"
}
running() { [ "$(count '.status.phase == "Running" and (.status.podIP // "") != ""
    and all(.status.containerStatuses[]?; .state.running)' "${2:-}")" = "$1" ]; }
gone() { [ "$(count true "${1:-}")" = 0 ]; }
address() { kubectl -n shop get pod "$1" -o 'jsonpath={.status.podIP}'; }
# With the requests that make and delete them.
all_started() { kubectl apply -f $work/pods.yaml >/dev/null && running $many; }
all_deleted() { kubectl -n shop delete pod --all --wait=false >/dev/null 2>&1 && gone; }

# How many addresses are taken, of these pods.
taken() {
    kubectl get ipamblocks -o json | jq '[.items[].spec | .attributes as $of | .allocations[] | select(. != null)
        | $of[.].secondary | select(.namespace == "shop")] | length'
}
has_taken() { [ "$(taken)" = "$1" ]; }
# The network namespace that has an address.
namespace_of() {
    for name in /run/netns/cni-*; do
        ! ip netns exec "${name##*/}" ip -brief address | grep -qF " $1/" || echo "${name##*/}"
    done
}
# What ADD noted on the pod.
annotation() { kubectl -n shop get pod "$1" -o 'jsonpath={.metadata.annotations.cni\.projectcalico\.org/podIP}'; }
interfaces() { ip -brief link show type veth | grep -c '^cali' || true; }
