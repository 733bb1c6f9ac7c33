#!/usr/bin/env bash
# The steps of the Kubernetes demo. ../run.sh runs them inside private namespaces.
set -euo pipefail
keep=${1:-}
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
work=/run/demo
journal=/var/lib/calico/cni-journal
. tests/demo/say.sh

# The administrator's kubeconfig; the plugin has its own, see below.
export KUBECONFIG=$work/admin.kubeconfig DATASTORE_TYPE=kubernetes
# kubectl's cache directory is below HOME.
export HOME=$work
. tests/demo/control-plane.sh

# plugin VERB POD: calls the plugin as the kubelet's container runtime does, with the result on stdout
plugin() {
    CNI_COMMAND="$1" CNI_CONTAINERID="sandbox-of-$2" CNI_NETNS="/run/netns/$2" CNI_IFNAME=eth0 \
        CNI_ARGS="IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=$2" \
        CNI_PATH="$(dirname "$(command -v calico)")" calico <$work/conf.json
}

address() { jq -r '.ips[0].address' "$work/$1.json" | cut -d/ -f1; }
annotations() {
    echo "    \$ kubectl -n shop get pod $1 -o yaml"
    kubectl -n shop get pod "$1" -o yaml | grep -E '^metadata:|^  (annotations|name):|cni\.projectcalico\.org' | sed 's/^/    /'
}

private_world

echo "KUBECONFIG=$KUBECONFIG DATASTORE_TYPE=kubernetes HOME=$work bash
    # then: kubectl -n shop get pods -o yaml; calico-ipam show; ip netns exec web-1 ip address" >$work/look-around

step "A control plane on loopback, in this private network: etcd and kube-apiserver, with RBAC"
start_control_plane
kubectl version | sed -n 's/^Server/    kube-apiserver/p'

step "Calico's custom resources, from the types of this code"
run kubectl apply -f deploy/crds/v1
kubectl wait --for condition=established crd --all >/dev/null

step "The plugin's user: a service account, its role and the binding"
run kubectl apply -f deploy/rbac
for wish in "get pods" "list pods" "update ipamblocks.crd.projectcalico.org" "update ippools.crd.projectcalico.org"; do
    # shellcheck disable=SC2086 # two words
    echo "    may it $wish? $(kubectl auth can-i $wish --all-namespaces \
        --as system:serviceaccount:kube-system:calico-cni-plugin 2>/dev/null || true)"
done

step "Its token, in a kubeconfig that only root can read, and a network configuration with this kubeconfig"
kubeconfig $work/calico-kubeconfig --token "$(kubectl -n kube-system create token calico-cni-plugin --duration 1h)"
run ls -l $work/calico-kubeconfig
cat >$work/conf.json <<JSON
{
  "cniVersion": "1.0.0", "name": "k8s-pod-network", "type": "calico", "log_level": "error",
  "datastore_type": "kubernetes", "kubernetes": { "kubeconfig": "$work/calico-kubeconfig" },
  "nodename": "node1", "nodename_file_optional": true,
  "ipam": { "type": "calico-ipam" }, "policy": { "type": "k8s" }
}
JSON
run cat $work/conf.json

step "A node, an address pool, a namespace and two pods, through the API"
run kubectl apply -f tests/demo/kubernetes/cluster.yaml -f tests/demo/kubernetes/pods.yaml

step "ADD, as for kubelet: a network namespace each, then CNI_COMMAND=ADD ... calico < conf.json"
for pod in web-1 web-2; do
    ip netns add $pod
    ip -n $pod link set lo up
    plugin ADD $pod >$work/$pod.json
    echo "    $pod: $(address $pod)"
done

step "The annotations that ADD wrote to a pod, for Felix and other readers"
annotations web-1

step "Ping: node to pod, pod to pod"
run ping -c 1 -w 10 "$(address web-1)" | grep -E 'ping -c|bytes from'
run ip netns exec web-1 ping -c 1 -w 10 "$(address web-2)" | grep -E 'ping -c|bytes from'

step "The owner of each address"
run calico-ipam show --show-blocks
run kubectl get ipamhandles

[ "$keep" != 1 ] || exit 0

step "DEL of web-1 releases the address and removes the annotations"
plugin DEL web-1
ip netns delete web-1
annotations web-1

step "The API server is stopped: DEL of web-2 succeeds, and the journal records a deferred DEL"
kill $api_server
wait $api_server 2>/dev/null || true
plugin DEL web-2
echo "    exit 0"
ip netns delete web-2
run jq . $journal/*.json

step "The API server is running again: the address of web-2 is still allocated"
start_api_server
run calico-ipam show

step "The next call on the node replays the deferred DEL, here a second DEL of web-1"
plugin DEL web-1
echo "    $(find $journal -name '*.json' | wc -l) entries in $journal"

step "Everything is removed: deferred DELs, addresses, handles, annotations, interfaces of pods"
run calico-ipam show
run calico-ipam check
annotations web-2
run ip -brief link
