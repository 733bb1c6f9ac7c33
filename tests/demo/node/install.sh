# shellcheck shell=bash
# Installation with the manifests of deploy/, in two versions. The steps of the demo source this file after node.sh.
#
# No older release exists. The former version is another build of the same sources with that version number; its
# manifest differs in the images, in the configuration's log_level, and in the name of the configuration's copy.

now=$(grep -m 1 -o 'calico/cni:v[0-9A-Za-z.-]*' deploy/install.yaml | cut -d: -f2)
former=v0.0.9
# The programs of each version, and its images, built by deploy/images/build.sh.
declare -A programs=([$now]=target/plugin [$former]=target/plugin-former)
declare -A images=([$now]=target/images-here [$former]=target/images-former)

# import_images VERSION: imports the images, in place of a registry
import_images() {
    for name in cni kube-controllers; do
        tar -C "${images[$1]}/$name" -cf "$work/$name.tar" .
        ctr -n k8s.io images import --local "$work/$name.tar"
        rm "$work/$name.tar"
    done
}

# Writes the manifests of both versions, as an operator has them.
write_manifests() {
    cp deploy/install.yaml "$work/install-$now.yaml"
    sed "s/:$now$/:$former/; s/\"log_level\": \"info\"/\"log_level\": \"error\"/; s/calico-cni-config-/&former-/" \
        deploy/install.yaml >"$work/install-$former.yaml"
}

# write_overlay FOLDER COMPONENT...: writes a kustomization of $overlay, or else of today's manifest, with these components
write_overlay() {
    local folder=$1
    shift
    mkdir -p "$folder"
    # kustomize accepts no absolute paths.
    cat >"$folder/kustomization.yaml" <<YAML
resources: [$(realpath --relative-to "$folder" "${overlay:-deploy/overlays/kubernetes-v1}")]
components:
$(realpath --relative-to "$folder" "$@" | sed 's/^/  - /')
YAML
}

# Without kube-proxy, pods use the real address of the API server.
tell_where_the_api_server_is() {
    sed "s/api.example.com/$host_address/" deploy/examples/kubernetes-services-endpoint.yaml | kubectl apply -f -
}

# of_system KIND/NAME PATH: prints a field of an object in kube-system
of_system() { kubectl -n kube-system get "$1" -o "jsonpath=$2"; }
rolled_out() { run kubectl -n kube-system rollout status "$1" --timeout 180s | grep -v '^    Waiting'; }
doctor() { kubectl -n kube-system exec daemonset/calico-cni -c cni-agent -- calico doctor; }
digest() { sha256sum "$1" | cut -c 1-12; }
