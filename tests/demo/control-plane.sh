# shellcheck shell=bash
# A control plane for demos: etcd and kube-apiserver, in the demo's private namespaces, and optionally Kubernetes'
# controllers and scheduler. The demos' steps source this file after setting $work and $KUBECONFIG.

# The address of this host on its uplink, which pods can reach too.
host_address=192.168.65.1

# shellcheck disable=SC2154 # set by the sourcing script
pki=$work/pki

# certificate NAME SUBJECT: creates a key, and a certificate for it from the demo's authority
certificate() {
    openssl req -x509 -CA $pki/ca.pem -CAkey $pki/ca-key.pem -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -subj "$2" \
        -addext subjectAltName=IP:127.0.0.1,IP:$host_address -extensions usr_cert -keyout "$pki/$1-key.pem" -out "$pki/$1.pem" 2>>$pki/log
}

# kubeconfig FILE CREDENTIALS...: writes a kubeconfig for the API server with these credentials
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
    kube-apiserver --etcd-servers http://127.0.0.1:2379 --bind-address 0.0.0.0 --advertise-address 127.0.0.1 \
        --endpoint-reconciler-type none --service-cluster-ip-range 10.96.0.0/16 --authorization-mode RBAC \
        --cert-dir $pki --client-ca-file $pki/ca.pem --tls-cert-file $pki/server.pem \
        --tls-private-key-file $pki/server-key.pem --service-account-issuer https://kubernetes.default.svc \
        --service-account-key-file $pki/tokens-key.pem --service-account-signing-key-file $pki/tokens-key.pem \
        --kubelet-preferred-address-types InternalIP --kubelet-client-certificate $pki/admin.pem \
        --kubelet-client-key $pki/admin-key.pem >>$work/kube-apiserver.log 2>&1 &
    api_server=$!
    for _ in {1..600}; do
        [ "$(kubectl get --raw /readyz 2>/dev/null)" != ok ] || return 0
        kill -0 "$api_server" 2>/dev/null || break
        sleep 0.1
    done
    tail $work/kube-apiserver.log >&2
    return 1
}

# Creates the demo's own directories, and the node's default route. Without a default route, the kernel does not answer
# pods' ARP requests for 169.254.1.1.
private_world() {
    mount -t tmpfs tmpfs /run
    mount -t tmpfs tmpfs /var/lib
    mkdir -p /run/netns $work/pki
    ip link set lo up
    ip link add uplink type veth peer name world
    ip link set world up
    ip link set uplink up
    ip address add $host_address/24 dev uplink
    ip route add default via 192.168.65.2
    sysctl -qw net.ipv4.ip_forward=1
}

start_control_plane() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -subj /CN=demo-authority \
        -keyout $pki/ca-key.pem -out $pki/ca.pem 2>>$pki/log
    certificate server /CN=kube-apiserver
    certificate admin /O=system:masters/CN=admin
    openssl ecparam -name prime256v1 -genkey -noout -out $pki/tokens-key.pem
    etcd --data-dir $work/etcd --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
        --listen-peer-urls http://127.0.0.1:2380 >$work/etcd.log 2>&1 &
    kubeconfig "$KUBECONFIG" --client-certificate $pki/admin.pem --client-key $pki/admin-key.pem --embed-certs
    start_api_server
}

# Starts the controllers that create the pods of DaemonSets, Deployments and StatefulSets, and the account and CA
# certificate of each namespace, and the scheduler.
start_controllers() {
    kube-controller-manager --kubeconfig "$KUBECONFIG" --leader-elect=false --secure-port 0 --root-ca-file $pki/ca.pem \
        --service-account-private-key-file $pki/tokens-key.pem --controllers daemonset-controller,deployment-controller \
        --controllers replicaset-controller,statefulset-controller,garbage-collector-controller \
        --controllers node-lifecycle-controller,serviceaccount-controller,root-ca-certificate-publisher-controller \
        >>$work/kube-controller-manager.log 2>&1 &
    kube-scheduler --kubeconfig "$KUBECONFIG" --leader-elect=false --secure-port 0 >>$work/kube-scheduler.log 2>&1 &
}
