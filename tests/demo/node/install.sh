# shellcheck shell=bash
# Installation as the DaemonSet's init container does it, and its end. Sourced by the steps of the demo.

# TEMPORARY: until `calico install` stands.
install_plugins() {
    install -m 0755 target/plugin/calico /opt/cni/bin/calico
    ln /opt/cni/bin/calico /opt/cni/bin/calico-ipam
    for name in loopback portmap; do install -m 0755 /usr/lib/cni/$name /opt/cni/bin/$name; done
    kubectl apply -f deploy/rbac >/dev/null
    kubeconfig /etc/cni/net.d/calico-kubeconfig --token "$(kubectl -n kube-system create token calico-cni-plugin --duration 1h)"
    cat >$work/10-calico.conflist <<JSON
{ "name": "k8s-pod-network", "cniVersion": "1.0.0", "plugins": [
  { "type": "calico", "log_level": "info", "datastore_type": "kubernetes", "nodename": "$node",
    "nodename_file_optional": true, "ipam": { "type": "calico-ipam" }, "policy": { "type": "k8s" },
    "kubernetes": { "kubeconfig": "/etc/cni/net.d/calico-kubeconfig" } },
  { "type": "portmap", "snat": true, "capabilities": { "portMappings": true } } ] }
JSON
    mv $work/10-calico.conflist /etc/cni/net.d/10-calico.conflist
}
uninstall_plugins() { :; }
