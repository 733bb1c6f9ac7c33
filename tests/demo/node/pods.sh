# shellcheck shell=bash
# The demo's pods, and checks of their state. The steps source this file after node.sh.

# Number of pods that start together.
many=30

# pods NAME...: prints a manifest of a pod with the demo's image on this node for each name
pods() {
    for name in "$@"; do
        sed "s/NAME/$name/" tests/demo/node/pod.yaml
    done
}
numbered() { seq -f 'pod-%g' "$1"; }
# count WHAT [NAME]: counts the pods that match a jq condition, optionally those whose name begins with NAME
count() {
    kubectl -n shop get pods -o json |
        jq --arg name "${2:-}" "[.items[] | select(.metadata.name | startswith(\$name)) | select($1)] | length"
}
running() { [ "$(count '.status.phase == "Running" and (.status.podIP // "") != ""
    and all(.status.containerStatuses[]?; .state.running)' "${2:-}")" = "$1" ]; }
gone() { [ "$(count true "${1:-}")" = 0 ]; }
address() { kubectl -n shop get pod "$1" -o 'jsonpath={.status.podIP}'; }
# These two send the requests too, so that the measured time includes them.
all_started() { kubectl apply -f $work/pods.yaml >/dev/null && running $many; }
all_deleted() { kubectl -n shop delete pod --all --wait=false >/dev/null 2>&1 && gone; }

# Counts the allocated addresses of these pods.
taken() {
    kubectl get ipamblocks -o json | jq '[.items[].spec | .attributes as $of | .allocations[] | select(. != null)
        | $of[.].secondary | select(.namespace == "shop")] | length'
}
has_taken() { [ "$(taken)" = "$1" ]; }
# Prints the network namespace with this address.
namespace_of() {
    for name in /run/netns/cni-*; do
        ! ip netns exec "${name##*/}" ip -brief address | grep -qF " $1/" || echo "${name##*/}"
    done
}
# Prints the annotation that ADD wrote.
annotation() { kubectl -n shop get pod "$1" -o 'jsonpath={.metadata.annotations.cni\.projectcalico\.org/podIP}'; }
interfaces() { ip -brief link show type veth | grep -c '^cali' || true; }

# Runs the pod that the chart has for `helm test`, and prints its log. The manifests installed the same objects as the
# chart would, except that the ConfigMap which the pod reads has a hash in its name.
helm_test() {
    helm template calico-cni deploy/helm/calico-cni --namespace kube-system 2>/dev/null |
        awk 'BEGIN { RS = ORS = "---\n" } /\nkind: Pod\n/ || /\n  name: calico-cni-config\n/' >$work/helm-test.yaml
    kubectl apply -f $work/helm-test.yaml >/dev/null
    kubectl -n kube-system wait pod/calico-cni-test --for 'jsonpath={.status.phase}=Succeeded' --timeout 60s >/dev/null
    run kubectl -n kube-system logs calico-cni-test
    kubectl -n kube-system logs calico-cni-test | grep -q 'is in use'
    kubectl delete -f $work/helm-test.yaml >/dev/null
}
