#!/usr/bin/env bash
# `make e2e`: a real node with the plugin, from installation to uninstallation. ../run.sh runs it inside private
# namespaces.
set -Eeuo pipefail
trap 'echo "    FAILED: $BASH_COMMAND (${BASH_SOURCE[0]}, line $LINENO)" >&2' ERR
keep=${1:-}
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
work=/run/demo
. tests/demo/say.sh

export KUBECONFIG=$work/admin.kubeconfig HOME=$work DATASTORE_TYPE=kubernetes
. tests/demo/control-plane.sh
for part in cannot image node install pods any_of controllers upgrade neighbor obstacles restriction adopt migration uninstall; do
    . tests/demo/node/$part.sh
done

private_world
refusal=$(node_refusal)
[ -n "$refusal" ] || node_world
echo "KUBECONFIG=$KUBECONFIG DATASTORE_TYPE=kubernetes HOME=$work bash
    # then: kubectl get pods -A -o wide; calico-ipam show; ctr -n k8s.io containers list; less $work/kubelet.log" >$work/look-around

step "A control plane: etcd, kube-apiserver, the controllers and the scheduler of Kubernetes"
start_control_plane
start_controllers
kubectl version | sed -n 's/^Server/    kube-apiserver/p'
write_manifests

if [ -n "$refusal" ]; then
    step "A node"
    skip "a node and all that runs on it" "$refusal"
    step "The manifests, into the API server alone"
    run kubectl apply --server-side -f "$work/install-$now.yaml" | grep -v customresourcedefinition
    say_what_was_skipped
    exit
fi

step "A node without a network: containerd and kubelet"
make_image
write_node_configuration
start_containerd
run ctr -n k8s.io images import --local $work/image.tar
ctr -n k8s.io images tag $image registry.k8s.io/pause:3.10.1 >/dev/null
for version in "$former" "$now"; do import_images "$version" | sed 's/^/    /'; done
start_kubelet
wait_for 60 kubectl get node $node >/dev/null 2>&1
run kubectl get node $node -o 'jsonpath={.status.nodeInfo.kubeletVersion} {.status.nodeInfo.containerRuntimeVersion}{"\n"}'
not is_ready

step "Installation of $former, 20 s before kube-proxy: its manifest, a pool; the DaemonSet's pod makes the node ready"
tell_where_the_api_server_is >/dev/null
refusal=$(table_refusal filter)
if [ -z "$refusal" ]; then swallow -I; else skip "an API server that comes later" "$refusal"; fi
begun=$SECONDS
run kubectl apply --server-side -f "$work/install-$former.yaml" | grep -v customresourcedefinition
kubectl wait --for condition=established crd --all >/dev/null
kubectl apply -f tests/demo/node/cluster.yaml >/dev/null
[ -n "$refusal" ] || end_of_swallowing
wait_for 120 is_ready
echo "    the node is ready $((SECONDS - begun)) s after the manifest was sent;" \
    "restarts of install-cni: $(restarts install-cni)"
[ "$(restarts install-cni)" = 0 ]
rolled_out daemonset/calico-cni
run kubectl -n kube-system logs daemonset/calico-cni -c install-cni
run ls -l /opt/cni/bin /etc/cni/net.d
run /opt/cni/bin/calico -v

step "calico doctor"
echo "    \$ kubectl -n kube-system exec daemonset/calico-cni -c cni-agent -- calico doctor"
doctor | sed 's/^/    /'

step "kube-controllers from its image: both replicas of the Deployment, on the only node"
show_controllers

step "Two pods: running, with addresses of our blocks"
pods web-1 web-2 | kubectl apply -f - >/dev/null
wait_for 60 running 2
run kubectl -n shop get pods -o wide --no-headers
for name in web-1 web-2; do [ "$(annotation $name)" = "$(address $name)/32" ]; done
run calico-ipam show --show-blocks

step "Ping: node to pod, pod to pod"
run ping -c 1 -W 3 "$(address web-1)" | grep -E '[$]|bytes from'
run ip netns exec "$(namespace_of "$(address web-2)")" ping -c 1 -W 3 "$(address web-1)" | grep -E '[$]|bytes from'

step "A port of the node for a pod, by portmap: requested from outside the cluster"
refusal=$(table_refusal nat)
if [ -z "$refusal" ]; then
    kubectl apply -f tests/demo/node/hostport.yaml >/dev/null
    wait_for 60 running 3
    wait_for 10 ip netns exec outside busybox wget -qO $work/answer http://$host_address:8080/hostname 2>/dev/null
    run cat $work/answer
else
    skip "a port of the node for a pod" "$refusal"
fi

step "Another program chains a plugin, as istio-cni does: upgrades keep its entry, and new pods have the plugin"
chain_neighbor
pods tuned | kubectl apply -f - >/dev/null
wait_for 60 running 1 tuned
is_tuned tuned
not is_tuned web-1
run jq -c '.plugins[] | .type' $conflist
kubectl -n shop delete pod tuned --wait=false >/dev/null
wait_for 60 gone tuned

step "Upgrade to $now while pods run and exchange packets"
roll "$former" "$now"

step "Downgrade: the manifest of $former"
roll "$now" "$former"

step "Upgrade to $now again"
roll "$former" "$now"

step "The manifest of $former with maxSurge: two agents at a time, each file is written once; then $now without it"
roll_with_surge "$now" "$former"

step "The pod of helm test: it has an address of this network, and finds itself in IPAM"
if command -v helm >/dev/null; then
    helm_test
else
    skip "the pod of helm test" "there is no helm"
fi

step "The directory for configurations is removed and made again: the agent ends once, and the node becomes ready"
remove_directory

step "The directory belongs to another user, as Kubespray's: install-cni says so, and works with dac-override"
give_directory_away

step "containerd reads another directory: with components/node-condition the agent says so"
read_another_directory

step "The file system of the directory is read-only, and then writable: the agent stays, and makes at most one token"
make_read_only

step "The file system of the directory is full while the configuration is missing: the agent stays, and writes it later"
fill_disk

step "Two DaemonSets by mistake: the pod that installed last wins, once, and the other agent names the cause"
run_two_daemonsets

step "node-restriction: a token that is bound to the Node, for all steps that follow; attacks with this token"
restrict
echo "    the token of the plugins is bound to Node $(bound_to)"
attack

step "kubectl delete pod: addresses are released and interfaces removed"
run kubectl -n shop delete pod --all --wait=false
wait_for 60 gone
wait_for 30 has_taken 0
echo "    interfaces of pods: $(interfaces), kube-controllers' own"

step "Fixed addresses: a Deployment and a StatefulSet restart inside a list of as many addresses as replicas"
give_fixed_addresses

step "$many pods at once"
# shellcheck disable=SC2046 # names
pods $(numbered $many) >$work/pods.yaml
wait_for 120 all_started
echo "    all running after $waited s"
has_taken $many
wait_for 120 all_deleted
echo "    all deleted after $waited s"
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
echo "    all running $waited s later, $(taken) addresses taken; kubelet waits 3 s at its start for each container that containerd" \
    "had not finished: $(grep -c 'Failed to create existing container' $work/kubelet.log || true)"
wait_for 60 has_taken $many

step "The node loses its power: no sandbox remains, its disk is unchanged"
led=$(holder)
power_off
echo "    interfaces of pods: $(interfaces)"
start_containerd
start_kubelet
restarted() { running $many && [ "$(find /run/netns -name 'cni-*' | wc -l)" -ge $((many + 2)) ]; }
wait_for 180 restarted
echo "    all running again $waited s later"
wait_for 60 has_taken $many
rolled_out deployment/$controllers
wait_for 60 leads_after "$led"
echo "    kube-controllers led again $waited s after that: a leader that dies without releasing its Lease holds it for 15 s"
run calico-ipam check

step "All blocks are deleted under $many running pods: calico-ipam adopt allocates the addresses again"
adopt_all

step "Migration to projectcalico.org/v3 under $many running pods: the component, and a dry run"
prepare_migration
try_migration

step "The migration: pods exchange packets, and pods that start while v1 is locked run afterwards"
migrate

step "The end of v1: the object is deleted, then the manifest names v3"
finish_migration

if [ "$keep" = 1 ]; then
    say_what_was_skipped
    exit
fi

step "A pod is deleted by force while kubelet is down: kube-controllers releases its address"
stop $kubelet
run kubectl -n shop delete pod pod-1 --force --grace-period=0 2>/dev/null
wait_for 60 has_taken $((many - 1))
echo "    free again after $waited s (leakGracePeriod 5 s)"
run kubectl -n kube-system get lease $controllers --no-headers
metrics "$(leader)" ipam_allocations_gc_reclamations

step "kubelet starts again, and all pods are deleted"
start_kubelet
kubectl -n shop delete pod --all --wait=false >/dev/null
wait_for 180 gone
wait_for 60 has_taken 0
run calico-ipam check

step "The Node is deleted, and kubelet registers it again: the plugins have a token for the new Node within 30 s"
recreate_node

step "calico uninstall, by its DaemonSet: a dry run, then the removal, with a report of everything that remains"
uninstall

step "The objects in the API server are deleted"
remove_objects

power_off
say_what_was_skipped
