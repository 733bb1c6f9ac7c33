#!/usr/bin/env bash
# The steps of the demo on Kubernetes, run inside private namespaces by ../run.sh.
set -euo pipefail
keep=${1:-}
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
work=/run/demo
journal=/var/lib/calico/cni-journal
. tests/demo/say.sh

# The administrator's; the plugin has one of its own, see below.
export KUBECONFIG=$work/admin.kubeconfig DATASTORE_TYPE=kubernetes
# kubectl's cache
export HOME=$work
pki=$work/pki

# certificate NAME SUBJECT: a key, and a certificate for it by the demo's authority
certificate() {
    openssl req -x509 -CA $pki/ca.pem -CAkey $pki/ca-key.pem -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -subj "$2" \
        -addext subjectAltName=IP:127.0.0.1 -extensions usr_cert -keyout "$pki/$1-key.pem" -out "$pki/$1.pem" 2>>$pki/log
}

# kubeconfig FILE CREDENTIALS...: how to reach the API server, and as whom
kubeconfig() {
    local file=$1
    shift
    (
        umask 077
        kubectl config --kubeconfig "$file" set-cluster demo --server https://127.0.0.1:6443 \
            --certificate-authority $pki/ca.pem --embed-certs
        kubectl config --kubeconfig "$file" set-credentials demo "$@"
        kubectl config --kubeconfig "$file" set-context demo --cluster demo --user demo
        kubectl config --kubeconfig "$file" use-context demo
    ) >/dev/null
}

start_api_server() {
    kube-apiserver --etcd-servers http://127.0.0.1:2379 --bind-address 127.0.0.1 --advertise-address 127.0.0.1 \
        --endpoint-reconciler-type none --service-cluster-ip-range 10.96.0.0/16 --authorization-mode RBAC \
        --cert-dir $pki --client-ca-file $pki/ca.pem --tls-cert-file $pki/server.pem \
        --tls-private-key-file $pki/server-key.pem --service-account-issuer https://kubernetes.default.svc \
        --service-account-key-file $pki/tokens-key.pem --service-account-signing-key-file $pki/tokens-key.pem \
        >>$work/kube-apiserver.log 2>&1 &
    api_server=$!
    for _ in {1..600}; do
        [ "$(kubectl get --raw /readyz 2>/dev/null)" != ok ] || return 0
        kill -0 "$api_server" 2>/dev/null || break
        sleep 0.1
    done
    tail $work/kube-apiserver.log >&2
    return 1
}

# plugin VERB POD: what kubelet's container runtime does; result on stdout
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

mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/lib
mkdir -p /run/netns $work/pki
ip link set lo up
# The node's way out, as every node has one: without a default route the kernel answers no pod for 169.254.1.1.
ip link add uplink type veth peer name world
ip link set world up
ip link set uplink up
ip address add 192.168.65.1/24 dev uplink
ip route add default via 192.168.65.2
sysctl -qw net.ipv4.ip_forward=1
echo "KUBECONFIG=$KUBECONFIG DATASTORE_TYPE=kubernetes HOME=$work bash
    # then: kubectl -n shop get pods -o yaml; calico-ipam show; ip netns exec web-1 ip address" >$work/look-around

step "A control plane on loopback, in this private network: etcd and kube-apiserver, with RBAC"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -subj /CN=demo-authority \
    -keyout $pki/ca-key.pem -out $pki/ca.pem 2>>$pki/log
certificate server /CN=kube-apiserver
certificate admin /O=system:masters/CN=admin
openssl ecparam -name prime256v1 -genkey -noout -out $pki/tokens-key.pem
etcd --data-dir $work/etcd --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
    --listen-peer-urls http://127.0.0.1:2380 >$work/etcd.log 2>&1 &
kubeconfig "$KUBECONFIG" --client-certificate $pki/admin.pem --client-key $pki/admin-key.pem --embed-certs
start_api_server
kubectl version | sed -n 's/^Server/    kube-apiserver/p'

step "Calico's custom resources, from the types of this code"
run kubectl apply -f deploy/crds/v1
kubectl wait --for condition=established crd --all >/dev/null

step "The user that the plugin calls as: an account, its one role, their binding"
run kubectl apply -f deploy/rbac
for wish in "get pods" "list pods" "update ipamblocks.crd.projectcalico.org" "update ippools.crd.projectcalico.org"; do
    # shellcheck disable=SC2086 # two words
    echo "    may it $wish? $(kubectl auth can-i $wish --all-namespaces \
        --as system:serviceaccount:kube-system:calico-cni-plugin 2>/dev/null || true)"
done

step "A token for it, in a kubeconfig that only root reads, and a network configuration that names this"
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

step "What ADD noted on a pod, where Felix and others find it"
annotations web-1

step "Ping: node to pod, pod to pod"
run ping -c 1 -W 3 "$(address web-1)" | grep -E 'ping -c|bytes from'
run ip netns exec web-1 ping -c 1 -W 3 "$(address web-2)" | grep -E 'ping -c|bytes from'

step "Who has which address"
run calico-ipam show --show-blocks
run kubectl get ipamhandles

[ "$keep" != 1 ] || exit 0

step "DEL of web-1: address and annotations are taken back"
plugin DEL web-1
ip netns delete web-1
annotations web-1

step "The API server is stopped: DEL of web-2 succeeds all the same, and notes what it owes"
kill $api_server
wait $api_server 2>/dev/null || true
plugin DEL web-2
echo "    exit 0"
ip netns delete web-2
run jq . $journal/*.json

step "The API server is up again: the address of web-2 is still taken"
start_api_server
run calico-ipam show

step "The next call of any verb pays the debt, here a second DEL of web-1"
plugin DEL web-1
echo "    $(find $journal -name '*.json' | wc -l) entries in $journal"

step "Nothing is left: no debt, no address, no handle, no annotation, no interface of a pod"
run calico-ipam show
run calico-ipam check
annotations web-2
run ip -brief link
