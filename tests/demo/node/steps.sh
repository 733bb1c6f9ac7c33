#!/usr/bin/env bash
# `make e2e`: a real node with the plugin installed on it, start to end; run inside private namespaces by ../run.sh.
set -euo pipefail
keep=${1:-}
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
work=/run/demo
. tests/demo/say.sh

export KUBECONFIG=$work/admin.kubeconfig HOME=$work DATASTORE_TYPE=kubernetes
. tests/demo/control-plane.sh
. tests/demo/node/image.sh
. tests/demo/node/node.sh
. tests/demo/node/install.sh

# How many pods start together.
many=30

# pods NAME...: as many pods of the demo's image, for this node
pods() {
    for name in "$@"; do
        sed "s/NAME/$name/" tests/demo/node/pod.yaml
    done
}
numbered() { seq -f 'pod-%g' "$1"; }
count() { kubectl -n shop get pods -o json | jq "[.items[] | select($1)] | length"; }
running() { [ "$(count '.status.phase == "Running" and (.status.podIP // "") != ""
    and all(.status.containerStatuses[]?; .state.running)')" = "$1" ]; }
gone() { [ "$(count true)" = 0 ]; }
address() { kubectl -n shop get pod "$1" -o 'jsonpath={.status.podIP}'; }
# With the requests that make and delete them.
all_started() { kubectl apply -f $work/pods.yaml >/dev/null && running $many; }
all_deleted() { kubectl -n shop delete pod --all --wait=false >/dev/null 2>&1 && gone; }
# How many addresses are taken, of pods.
taken() { kubectl get ipamblocks -o json | jq '[.items[].spec.allocations[] | select(. != null)] | length'; }
has_taken() { [ "$(taken)" = "$1" ]; }
# The network namespace that has an address.
namespace_of() {
    for name in /run/netns/cni-*; do
        ! ip netns exec "${name##*/}" ip -brief address | grep -qF " $1/" || echo "${name##*/}"
    done
}
# What ADD noted on the pod.
annotation() { kubectl -n shop get pod "$1" -o 'jsonpath={.metadata.annotations.cni\.projectcalico\.org/podIP}'; }

private_world
node_world
echo "KUBECONFIG=$KUBECONFIG DATASTORE_TYPE=kubernetes HOME=$work bash
    # then: kubectl get pods -A -o wide; calico-ipam show; ctr -n k8s.io containers list; less $work/kubelet.log" >$work/look-around

step "A control plane, and Calico's objects, accounts, roles and programs: deploy/install.yaml"
start_control_plane
apply_manifests | grep -v customresourcedefinition | sed 's/^/    /'
kubectl apply -f tests/demo/node/cluster.yaml >/dev/null
kubectl version | sed -n 's/^Server/    kube-apiserver/p'

step "A node without network: containerd and kubelet"
make_image
write_node_configuration
start_containerd
run ctr -n k8s.io images import --local $work/image.tar
start_kubelet
wait_for 60 kubectl get node $node >/dev/null 2>&1
run kubectl get node $node -o 'jsonpath={.status.nodeInfo.kubeletVersion} {.status.nodeInfo.containerRuntimeVersion}{"\n"}'
! is_ready

step "The DaemonSet's pod for this node installs the plugins: the node becomes ready"
run import_image cni
install_plugins >/dev/null
wait_for 60 is_ready
echo "    ready $waited s later"
wait_for 60 agent_is_ready
# `kubectl logs` asks kubelet by the node's name, which nobody here resolves.
run cut -d' ' -f4- /var/log/pods/kube-system_calico-cni-$node*/install-cni/0.log
run ls -l /opt/cni/bin /etc/cni/net.d
run calico doctor

step "Two pods: running, with addresses of our blocks"
pods web-1 web-2 | kubectl apply -f - >/dev/null
wait_for 60 running 2
run kubectl -n shop get pods -o wide --no-headers
for name in web-1 web-2; do [ "$(annotation $name)" = "$(address $name)/32" ]; done
run calico-ipam show --show-blocks

step "Ping: node to pod, pod to pod"
run ping -c 1 -W 3 "$(address web-1)" | grep 'bytes from'
run ip netns exec "$(namespace_of "$(address web-2)")" ping -c 1 -W 3 "$(address web-1)" | grep 'bytes from'

step "A port of the node for a pod, by portmap: asked from outside of the cluster"
kubectl apply -f tests/demo/node/hostport.yaml >/dev/null
wait_for 60 running 3
wait_for 10 ip netns exec outside busybox wget -qO $work/answer http://192.168.65.1:8080/hostname 2>/dev/null
run cat $work/answer

step "kubectl delete pod: addresses and interfaces are given back"
run kubectl -n shop delete pod --all --wait=false
wait_for 60 gone
wait_for 30 has_taken 0
ip -brief link show type veth | grep -c '^cali' | sed 's/^/    interfaces of pods: /' || true

step "$many pods at once"
# shellcheck disable=SC2046 # names
pods $(numbered $many) >$work/pods.yaml
wait_for 120 all_started
echo "    all running after $waited s (upstream: 8.3 s on such a machine)"
has_taken $many
wait_for 120 all_deleted
echo "    all gone after $waited s (upstream: 8.0 s)"
wait_for 30 has_taken 0

step "kubelet and containerd die in the middle of $many starts, and come back"
kubectl apply -f $work/pods.yaml >/dev/null &
sleep 1
stop $kubelet
stop $containerd
echo "    running then: $(count '.status.phase == "Running"')"
start_containerd
start_kubelet
wait_for 180 running $many
echo "    all running $waited s later, $(taken) addresses taken"
wait_for 60 has_taken $many

step "The node's power goes: no sandbox is left, its disk is as it was"
power_off
ip -brief link show type veth | grep -c '^cali' | sed 's/^/    interfaces of pods: /' || true
start_containerd
start_kubelet
restarted() { running $many && [ "$(find /run/netns -name 'cni-*' | wc -l)" -ge $many ]; }
wait_for 180 restarted
echo "    all running again $waited s later"
wait_for 60 has_taken $many
run calico-ipam check

[ "$keep" != 1 ] || exit 0

step "A pod deleted by force while kubelet is down: kube-controllers takes its address back"
kube-controllers --status-file $work/status.json >$work/kube-controllers.log 2>&1 &
stop $kubelet
kubectl -n shop delete pod pod-1 --force --grace-period=0 >/dev/null 2>&1
wait_for 60 has_taken $((many - 1))
echo "    free again after $waited s (leakGracePeriod 5 s)"

step "kubelet is back, and everything goes"
start_kubelet
kubectl -n shop delete pod --all --wait=false >/dev/null
wait_for 180 gone
wait_for 60 has_taken 0
run calico-ipam check

step "calico uninstall: what was installed is taken back, and what is left is said"
kubectl -n kube-system delete pod calico-cni-$node --wait=false >/dev/null
run calico uninstall
run calico uninstall --yes
run ls -l /opt/cni/bin /etc/cni/net.d

power_off
