# shellcheck shell=bash
# Installation by the manifests of deploy/, and its end. Sourced by the steps of the demo, after node.sh.
#
# A DaemonSet's pods are made by a controller and placed by a scheduler, which do not run here: the pod is made from its
# template, for this node.

# The images, as deploy/images/build.sh has made them.
images=target/images-here

apply_manifests() {
    kubectl apply --server-side -f deploy/install.yaml
    kubectl wait --for condition=established crd --all >/dev/null
    # What controllers of Kubernetes give each namespace.
    kubectl -n kube-system create configmap kube-root-ca.crt --from-file=ca.crt=$pki/ca.pem
    # There is no kube-proxy: the API server is reached where it is (deploy/examples).
    kubectl -n kube-system create configmap kubernetes-services-endpoint \
        --from-literal=KUBERNETES_SERVICE_HOST=127.0.0.1 --from-literal=KUBERNETES_SERVICE_PORT=6443
}

# import_image NAME: what a registry would give
import_image() {
    tar -C "$images/$1" -cf "$work/$1.tar" .
    ctr -n k8s.io images import --local "$work/$1.tar"
}

# The agent of this node, by the DaemonSet's template.
agent_pod() {
    kubectl -n kube-system get daemonset calico-cni -o json | jq --arg node $node '{ apiVersion: "v1", kind: "Pod",
        metadata: ({ name: ("calico-cni-" + $node), namespace: "kube-system" } + .spec.template.metadata),
        spec: (.spec.template.spec + { nodeName: $node }) }'
}

install_plugins() { agent_pod | kubectl apply -f -; }
agent_is_ready() {
    [ "$(kubectl -n kube-system get pod calico-cni-$node -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}')" = True ]
}
