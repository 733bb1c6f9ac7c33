# shellcheck shell=bash
# An image of one layer, without a registry: busybox, of which a pod's containers and its sandbox are made. Sourced by the
# steps of the demo, after $work is set.

image=docker.io/library/demo:1

# blob FILE: keeps it under its digest; says type-less descriptor
blob() {
    local digest
    digest=$(sha256sum "$1" | cut -d' ' -f1)
    cp "$1" "$work/oci/blobs/sha256/$digest"
    jq -nc --arg digest "sha256:$digest" --argjson size "$(stat -c %s "$1")" '{digest: $digest, size: $size}'
}

# The archive that `ctr images import` reads.
make_image() {
    local layer diff config manifest
    mkdir -p "$work/oci/blobs/sha256" "$work/root/bin"
    cp /bin/busybox "$work/root/bin/busybox"
    for name in sh sleep wget httpd ping; do ln -s busybox "$work/root/bin/$name"; done
    tar -C "$work/root" -cf "$work/layer.tar" .
    layer=$(blob "$work/layer.tar")
    diff=$(jq -r .digest <<<"$layer")
    # It ends when it is told to, which `sleep` as the first process of a container does not.
    jq -nc --arg diff "$diff" --arg arch "$(dpkg --print-architecture)" '{architecture: $arch, os: "linux", rootfs: {type: "layers", diff_ids: [$diff]},
        config: {Env: ["PATH=/bin"], Entrypoint: ["sh", "-c", "trap exit TERM; sleep 1000000 & wait"]}}' >"$work/config.json"
    config=$(blob "$work/config.json")
    jq -nc --argjson config "$config" --argjson layer "$layer" '{schemaVersion: 2,
        mediaType: "application/vnd.oci.image.manifest.v1+json",
        config: ($config + {mediaType: "application/vnd.oci.image.config.v1+json"}),
        layers: [$layer + {mediaType: "application/vnd.oci.image.layer.v1.tar"}]}' >"$work/manifest.json"
    manifest=$(blob "$work/manifest.json")
    jq -nc --argjson manifest "$manifest" --arg name $image '{schemaVersion: 2,
        manifests: [$manifest + {mediaType: "application/vnd.oci.image.manifest.v1+json",
            annotations: {"io.containerd.image.name": $name}}]}' >"$work/oci/index.json"
    echo '{"imageLayoutVersion": "1.0.0"}' >"$work/oci/oci-layout"
    tar -C "$work/oci" -cf "$work/image.tar" .
}
