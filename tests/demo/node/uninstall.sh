# shellcheck shell=bash
# The end of an installation, in the order of docs/uninstall.md. The steps of the demo source this file after install.sh
# and pods.sh.

said_by_uninstall() { run kubectl -n kube-system logs -l k8s-app=calico-uninstall -c uninstall --tail=-1; }

uninstall() {
    pods remaining | kubectl apply -f - >/dev/null
    wait_for 60 running 1 remaining
    run kubectl delete -f deploy/workloads.yaml
    wait_for 60 no_pods_of calico-kube-controllers
    wait_for 60 no_pods_of calico-cni
    # A pod that still runs is not stranded.
    run kubectl -n shop delete pod remaining --wait=false
    wait_for 60 gone
    wait_for 30 has_taken 0
    echo "    it is deleted after the workloads, and its address is free"
    run kubectl apply -f deploy/uninstall/uninstall.yaml
    rolled_out daemonset/calico-uninstall
    said_by_uninstall
    run kubectl -n kube-system patch daemonset calico-uninstall --type=json --patch \
        '[{ "op": "replace", "path": "/spec/template/spec/initContainers/0/args", "value": ["uninstall", "--yes"] }]'
    rolled_out daemonset/calico-uninstall
    said_by_uninstall
    run kubectl delete -f deploy/uninstall/uninstall.yaml
    wait_for 60 no_pods_of calico-uninstall
    run ls -lA /opt/cni/bin /etc/cni/net.d /var/lib/calico
    [ -z "$(find /opt/cni/bin /etc/cni/net.d -mindepth 1)" ]
    # The plugin's files there are deleted, the journal too, because no DEL is deferred.
    [ "$(ls -A /var/lib/calico)" = nodename ]
}
no_pods_of() { [ -z "$(kubectl -n kube-system get pods -l k8s-app="$1" -o name)" ]; }

# Deletes the remaining objects in the API server: the rest of the manifests, and the definitions last.
remove_objects() {
    run kubectl delete --ignore-not-found -k deploy/base
    remove_restriction
    run kubectl delete -k deploy/rbac/kubernetes
    run kubectl delete -k deploy/rbac/users
    run kubectl -n kube-system delete configmap -l k8s-app=calico-cni
    run kubectl -n kube-system delete lease/$controllers
    remove_finalizers
    run kubectl delete -f deploy/crds/v3 | sed -n '1p; $p'
    # For a moment, the API server still lists the deleted resources.
    wait_for 10 nothing_is_left || true
    echo "    remaining of Calico: $kinds kinds, $objects objects, $roles roles of the cluster"
    nothing_is_left
}

# Removes the finalizers that kube-controllers give to pools and tiers of v3.
remove_finalizers() {
    kubectl get ippools.projectcalico.org,tiers.projectcalico.org -o name | while read -r name; do
        kubectl patch "$name" --type merge --patch '{ "metadata": { "finalizers": null } }' >/dev/null
    done
}

# Counts Calico's objects in the API server.
nothing_is_left() {
    kinds=$(named projectcalico.org kubectl api-resources -o name) &&
        objects=$(named calico kubectl get all,configmaps,poddisruptionbudgets,serviceaccounts,roles,rolebindings,leases -n kube-system -o name) &&
        roles=$(named calico kubectl get clusterroles,clusterrolebindings -o name) &&
        [ "$kinds $objects $roles" = "0 0 0" ]
}
# named PART COMMAND...: counts the printed names that contain PART; fails if the command fails
named() {
    local part=$1 names
    shift
    names=$("$@") || return
    grep -cF "$part" <<<"$names" || true
}
