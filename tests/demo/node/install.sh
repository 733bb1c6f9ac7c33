# shellcheck shell=bash
# Installation by the manifests of deploy/, in two versions. Sourced by the steps of the demo, after node.sh.
#
# There is no older release. The former version is made of the same sources by another build, which calls itself so; its
# manifest differs by the images and by the configuration's log_level.

now=$(grep -m 1 -o 'calico/cni:v[0-9A-Za-z.-]*' deploy/install.yaml | cut -d: -f2)
former=v0.0.9
# Of each version: its programs, and the images that deploy/images/build.sh has made of them.
declare -A programs=([$now]=target/plugin [$former]=target/plugin-former)
declare -A images=([$now]=target/images-here [$former]=target/images-former)

# import_images VERSION: what a registry would give
import_images() {
    for name in cni kube-controllers; do
        tar -C "${images[$1]}/$name" -cf "$work/$name.tar" .
        ctr -n k8s.io images import --local "$work/$name.tar"
        rm "$work/$name.tar"
    done
}

# The manifests, as an operator has them of each version.
write_manifests() {
    cp deploy/install.yaml "$work/install-$now.yaml"
    sed "s/:$now$/:$former/; s/\"log_level\": \"info\"/\"log_level\": \"error\"/" deploy/install.yaml >"$work/install-$former.yaml"
}

# There is no kube-proxy: the API server is reached where it is.
tell_where_the_api_server_is() {
    sed "s/api.example.com/$host_address/" deploy/examples/kubernetes-services-endpoint.yaml | kubectl apply -f -
}

# of_system KIND/NAME PATH: a field of an object in kube-system
of_system() { kubectl -n kube-system get "$1" -o "jsonpath=$2"; }
rolled_out() { run kubectl -n kube-system rollout status "$1" --timeout 180s | grep -v '^    Waiting'; }
doctor() { kubectl -n kube-system exec daemonset/calico-cni -c cni-agent -- calico doctor; }
digest() { sha256sum "$1" | cut -c 1-12; }
