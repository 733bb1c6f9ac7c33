#!/usr/bin/env bash
# `make publish`: pushes a release to the registry that it was made for: the images, their bills of materials and the
# provenance as referrers of the images, and the chart to charts/calico-cni. The files of the release go elsewhere.
#
#   deploy/publish.sh FOLDER
#
# FOLDER is the result of `REGISTRY=… make release`. Log in first, with `oras login` and `helm registry login`, or with
# the login of docker or podman, which both programs read. A second run changes nothing in the registry. PLAIN_HTTP=1 is
# for a registry without TLS.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tests/install-go-tools.sh helm oras
PATH="$(tests/install-go-tools.sh --path):$PATH"
cd "$1"
http=() to_http=()
[ -z "${PLAIN_HTTP:-}" ] || { http=(--plain-http) to_http=(--to-plain-http); }

fail() {
    echo "not published: $*" >&2
    exit 1
}

# Attaches a file to an image, or to its manifest of an architecture, with the time of the release, so that the same
# file gives the same referrer.
attach() {
    local subject=$1 kind=$2 file=$3
    oras attach "${http[@]}" --artifact-type "$kind" --annotation "org.opencontainers.image.created=$created" \
        "$subject" "$file:$kind"
}

sha256sum --check --strict --quiet SHA256SUMS
! grep -q '"trial": true' provenance.intoto.json || [ -n "${PLAIN_HTTP:-}" ] || fail "$1 is a trial"
created=$(sed -n 's/.*"SOURCE_DATE_EPOCH": "\([0-9]*\)".*/\1/p' provenance.intoto.json)
created=$(date --utc --date "@$created" +%Y-%m-%dT%H:%M:%SZ)
while read -r digest name architecture <&3; do
    repository=${name%:*} tag=${name##*:}
    image=image-${repository##*/}-$tag
    if [ -n "$architecture" ]; then
        attach "$repository@$digest" application/vnd.cyclonedx+json "$image-${architecture#linux/}.cdx.json"
    else
        oras cp --from-oci-layout "${to_http[@]}" "$image.tar:$tag" "$name"
        pushed=$(oras resolve "${http[@]}" "$name")
        [ "$pushed" = "$digest" ] || fail "the registry has $pushed as $name, and the release has $digest"
        attach "$repository@$digest" application/vnd.in-toto+json provenance.intoto.json
    fi
done 3<digests.txt
helm push "${http[@]}" calico-cni-*.tgz "oci://${repository%/*}/charts"
