#!/usr/bin/env bash
# The steps of the kube-controllers demo. ../run.sh runs them inside private namespaces.
set -euo pipefail
keep=${1:-}
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
work=/run/demo
. tests/demo/say.sh

export KUBECONFIG=$work/admin.kubeconfig HOME=$work
export DATASTORE_TYPE=etcdv3 ETCD_ENDPOINTS=http://127.0.0.1:2379 ETCDCTL_API=3 ETCDCTL_ENDPOINTS=http://127.0.0.1:2379
. tests/demo/control-plane.sh

v3=/calico/resources/v3/projectcalico.org
grace=5

# plugin VERB POD: calls the plugin as the kubelet's container runtime does, with the result on stdout
plugin() {
    CNI_COMMAND="$1" CNI_CONTAINERID="sandbox-of-$2" CNI_NETNS="/run/netns/$2" CNI_IFNAME=eth0 \
        CNI_ARGS="IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=$2" \
        CNI_PATH="$(dirname "$(command -v calico)")" calico <$work/conf.json
}

# stored PREFIX: counts Calico's objects below the prefix
stored() { etcdctl get "$1" --prefix --keys-only | grep -c . || true; }

leader() { kubectl -n kube-system get lease calico-kube-controllers -o 'jsonpath={.spec.holderIdentity}' 2>/dev/null; }
leads() { [ -n "$(leader)" ]; }
leads_another() { leads && [ "$(leader)" != "$1" ]; }
has() { [ "$(stored "$1")" -gt 0 ]; }
has_none() { [ "$(stored "$1")" = 0 ]; }
is_empty() { has_none $v3/nodes/node1 && has_none /calico/ipam/v2/assignment/ && has_none /calico/ipam/v2/handle/; }
# `grep -q` would end before curl, which would then fail.
has_reclaimed() { curl -fs http://127.0.0.1:9094/metrics | grep '^ipam_allocations_gc_reclamations' >$work/reclaimed; }
is_free() { ! calico-ipam show --ip "$1" | grep -q 'is in use'; }

# replica NAME: starts a replica, as a pod of the Deployment would
replica() {
    POD_NAME=$1 kube-controllers --status-file "$work/$1.json" >"$work/$1.log" 2>&1 &
    replicas[$1]=$!
}
declare -A replicas

private_world
echo "KUBECONFIG=$KUBECONFIG DATASTORE_TYPE=etcdv3 ETCD_ENDPOINTS=$ETCD_ENDPOINTS HOME=$work bash
    # then: calico-ipam show; kubectl get pods -A; etcdctl get --prefix $v3; less $work/replica-1.log" >$work/look-around

step "A control plane, Calico's data in etcd, and two replicas of kube-controllers"
start_control_plane
for node in node1 node2; do calico-ipam init --node $node >/dev/null; done
calico-ipam apply -f tests/demo/controllers/pool.yaml >/dev/null
replica replica-1
# A replica that creates the Lease waits before it writes.
wait_for 60 has $v3/kubecontrollersconfigurations/default
etcdctl get --print-value-only $v3/kubecontrollersconfigurations/default |
    jq -c ".spec.controllers.node.leakGracePeriod = \"${grace}s\"" | etcdctl put $v3/kubecontrollersconfigurations/default >/dev/null
wait_for 30 leads
replica replica-2
echo "    leader: $(leader); an address counts as leaked after $grace s (default: 15 min)"

step "A node and two pods, and ADD as for kubelet"
kubectl apply -f tests/demo/controllers/cluster.yaml >/dev/null
for node in node1 node2; do
    etcdctl get --print-value-only $v3/nodes/$node |
        jq -c '.spec.orchRefs = [{ nodeName: .metadata.name, orchestrator: "k8s" }]' | etcdctl put $v3/nodes/$node >/dev/null
done
cat >$work/conf.json <<JSON
{
  "cniVersion": "1.0.0", "name": "k8s-pod-network", "type": "calico", "log_level": "error",
  "datastore_type": "etcdv3", "etcd_endpoints": "$ETCD_ENDPOINTS", "kubernetes": { "kubeconfig": "$KUBECONFIG" },
  "nodename": "node1", "nodename_file_optional": true, "ipam": { "type": "calico-ipam" }, "policy": { "type": "k8s" }
}
JSON
for pod in web-1 web-2; do
    ip netns add $pod
    ip -n $pod link set lo up
    plugin ADD $pod | jq -r '.ips[0].address' | cut -d/ -f1 >$work/$pod.ip
    # The status that the kubelet reports.
    kubectl -n shop patch pod $pod --subresource status --type merge \
        -p "{\"status\":{\"podIP\":\"$(<$work/$pod.ip)\",\"podIPs\":[{\"ip\":\"$(<$work/$pod.ip)\"}]}}" >/dev/null
    echo "    $pod: $(<$work/$pod.ip)"
done

step "A Kubernetes NetworkPolicy is converted to Calico's"
kubectl apply -f tests/demo/controllers/policy.yaml >/dev/null
wait_for 30 has $v3/networkpolicies/shop/knp.default.web
etcdctl get --print-value-only $v3/networkpolicies/shop/knp.default.web | jq -c '.spec | .selector, .ingress[]' | sed 's/^/    /'

step "web-2 is deleted by force without a DEL: its address leaks, until garbage collection releases it"
kubectl -n shop delete pod web-2 --force --grace-period 0 2>/dev/null >/dev/null
calico-ipam show --ip "$(<$work/web-2.ip)" | head -1 | sed 's/^/    /'
wait_for 60 is_free "$(<$work/web-2.ip)"
echo "    free again after $waited s; web-1 still has $(<$work/web-1.ip): $(calico-ipam show --ip "$(<$work/web-1.ip)" | head -1)"

# The metric changes some time after the address is free.
wait_for 30 has_reclaimed
sed 's/^/    /' $work/reclaimed

step "The leader is killed: the other replica leads after the lease has expired (15 s)"
old=$(leader)
kill -KILL "${replicas[${old%%_*}]}"
# Otherwise the shell would report the killed process.
wait "${replicas[${old%%_*}]}" 2>/dev/null || true
wait_for 60 leads_another "$old"
echo "    leader after $waited s: $(leader)"

step "The node is deleted, and kube-controllers deletes its addresses, blocks, endpoints and Node"
kubectl -n shop delete pod web-1 --force --grace-period 0 2>/dev/null >/dev/null
kubectl delete node node1 >/dev/null
# Beside node2, only pools, tiers and the state of the cluster remain in the datastore then.
wait_for 60 is_empty
echo "    left after $waited s: $(stored $v3/nodes/node1) objects of node1, $(stored $v3/workloadendpoints/) endpoints," \
    "$(stored /calico/ipam/v2/assignment/) blocks, $(stored /calico/ipam/v2/handle/) handles"

[ "$keep" != 1 ] || exit 0

step "calico-ipam check finds no problem, and kube-controllers exits cleanly"
run calico-ipam check
new=$(leader)
kill "${replicas[${new%%_*}]}"
wait "${replicas[${new%%_*}]}"
echo "    exit 0; the lease is given back: holder '$(leader)'"
