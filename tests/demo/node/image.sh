# shellcheck shell=bash
# An image with a single layer, built without a registry: busybox, for a pod's containers and its sandbox. The steps of
# the demo source this file after setting $work.

image=docker.io/library/demo:1

# blob FILE: stores the file under its digest, and prints a descriptor without a media type
blob() {
    local digest
    digest=$(sha256sum "$1" | cut -d' ' -f1)
    cp "$1" "$work/oci/blobs/sha256/$digest"
    jq -nc --arg digest "sha256:$digest" --argjson size "$(stat -c %s "$1")" '{digest: $digest, size: $size}'
}

# Creates the archive for `ctr images import`.
make_image() {
    local layer diff config manifest
    mkdir -p "$work/oci/blobs/sha256" "$work/root/bin"
    cp /bin/busybox "$work/root/bin/busybox"
    for name in sh sleep wget httpd ping; do ln -s busybox "$work/root/bin/$name"; done
    tar -C "$work/root" -cf "$work/layer.tar" .
    layer=$(blob "$work/layer.tar")
    diff=$(jq -r .digest <<<"$layer")
    # The shell exits on SIGTERM, which `sleep` as the first process of a container does not.
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
