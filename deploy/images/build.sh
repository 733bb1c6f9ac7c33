#!/usr/bin/env bash
# `make image`: builds the images cni and kube-controllers as OCI image layouts, without a container engine.
#
#   deploy/images/build.sh [--programs DIR] [--out DIR] [ARCHITECTURE ...]
#
# The architectures are amd64 and arm64; the default is both. With --programs, the images contain the static programs in
# DIR, built for this machine's architecture. Otherwise the script builds the programs for each architecture.
#
# REGISTRY, VERSION and SOURCE_DATE_EPOCH set the registry, the tag and the time of the images. By default the version
# is that of Cargo.toml, and the time is that of the last commit. `calico version` prints time and commit. The programs
# of `make build` do not contain them, because cargo would recompile the programs for each commit. The commit of a tree
# with changes ends in -dirty.
#
# The same commit with the same versions of Rust, Go and Debian's C compiler gives the same digests, in any folder and
# with any CARGO_TARGET_DIR. MOST_BYTES is for tests only, which use larger programs of quick builds. Beside the
# layouts, digests.txt lists the digests of images and architectures, and programs/<architecture> contains our programs
# alone, with the names of their functions in separate files, bills of materials and notices.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

case $(uname -m) in
x86_64) HERE=amd64 ;;
aarch64) HERE=arm64 ;;
*) echo "images cannot be built on $(uname -m), only on x86_64 and aarch64" >&2; exit 1 ;;
esac
declare -A RUST=([amd64]=x86_64-unknown-linux-musl [arm64]=aarch64-unknown-linux-musl)
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/calico-tests
REGISTRY=${REGISTRY:-registry.example.com/calico}
VERSION=${VERSION:-v$(deploy/version.sh)}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
# These variables would override the flags in .cargo/config.toml.
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_RUSTFLAGS

programs='' out=target/images archs=()
while [ $# -gt 0 ]; do
    case $1 in
    --programs) programs=$2 && shift 2 ;;
    --out) out=$2 && shift 2 ;;
    amd64 | arm64) archs+=("$1") && shift ;;
    *) echo "unknown argument: $1 (amd64, arm64, --programs DIR, --out DIR)" >&2; exit 2 ;;
    esac
done
[ ${#archs[@]} -gt 0 ] || { [ -n "$programs" ] && archs=("$HERE"); } || archs=(amd64 arm64)
[ -z "$programs" ] || [ "${archs[*]}" = "$HERE" ] || { echo "--programs can only build images for $HERE" >&2; exit 2; }

# Prints the commit of this tree; prints nothing outside of a git repository.
commit_here() {
    local commit
    commit=$(git rev-parse --verify --quiet HEAD 2>/dev/null) || return 0
    echo "$commit$([ -z "$(git status --porcelain)" ] || echo -dirty)"
}

# Prints the commit that a program reports; prints nothing if it reports none.
commit_of() { "$1" version | sed -nE 's/^Git commit: *([0-9a-f]{40}(-dirty)?)$/\1/p'; }

# Installs a C compiler for musl on another architecture than this machine's.
require_cross_compiler() {
    local zig
    zig=$CACHE/zig-$(sed -n 's/^ziglang==\([0-9.]*\).*/\1/p' deploy/images/zig.txt)
    if [ ! -d "$zig" ]; then
        echo "installing zig into $zig"
        rm -rf "$zig.new"
        pip3 install --quiet --root-user-action=ignore --no-cache-dir --no-compile --no-deps --only-binary=:all: \
            --require-hashes --requirement deploy/images/zig.txt --target "$zig.new"
        mv -T "$zig.new" "$zig"
    fi
    # cc-rs passes the target name of Rust, which zig does not support. zig adds checks that need a library of its own.
    cat >"$CACHE/zig-cc-$1" <<SH
#!/usr/bin/env bash
arguments=()
for argument in "\$@"; do
    case \$argument in --target=*) ;; *) arguments+=("\$argument") ;; esac
done
exec "$zig/ziglang/zig" cc -target "${RUST[$1]%-unknown-linux-musl}-linux-musl" -fno-sanitize=undefined "\${arguments[@]}"
SH
    chmod +x "$CACHE/zig-cc-$1"
    printf '#!/bin/sh\nexec "%s" ar "$@"\n' "$zig/ziglang/zig" >"$CACHE/zig-ar"
    chmod +x "$CACHE/zig-ar"
}

# Builds our programs for an architecture into a folder. The programs contain no paths of this machine.
build_programs() {
    local arch=$1 into=$2 target=${RUST[$1]} name cross=()
    if [ "$arch" != "$HERE" ]; then
        rustup target add --toolchain "$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)" "$target"
        require_cross_compiler "$arch"
        name=${target//-/_}
        cross=("CC_$name=$CACHE/zig-cc-$arch" "AR_$name=$CACHE/zig-ar")
    fi
    local build_info=("CALICO_BUILD_DATE=$(date --utc --date "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)" ${commit:+"CALICO_GIT_COMMIT=$commit"})
    # The last matching prefix takes effect.
    local built=${CARGO_TARGET_DIR:-$PWD/target}/image-build paths
    paths="'--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo', '--remap-path-prefix=$PWD=/src', '--remap-path-prefix=$built=/build'"
    for build in release:cni-plugin:calico controllers:kube-controllers-program:kube-controllers; do
        IFS=: read -r profile package program <<<"$build"
        env "${cross[@]}" "${build_info[@]}" CARGO_TARGET_DIR="$built" cargo build --locked --profile "$profile" -p "$package" --bin "$program" \
            --target "$target" --config "target.$target.rustflags = [$paths]"
        install -m 0755 "$built/$target/$profile/$program" "$into/$program"
    done
    deploy/split-symbols.sh "$into/kube-controllers" "$into/kube-controllers.debug"
}

# Prints the libraries of the Rust toolchain that are in each program: name, version, license, SHA-256. Prints nothing
# without the target, because programs that are built without it contain another C library.
list_linked() {
    local libraries musl
    libraries=$(rustc --print target-libdir --target "${RUST[$1]}")
    [ -d "$libraries" ] || return 0
    musl=$(ar p "$libraries/self-contained/libc.a" version.lo | grep -aoE '[0-9]+\.[0-9]+\.[0-9]+' | sed -n 1p)
    echo "rust-std $(rustc --version | cut -d' ' -f2) MIT/Apache-2.0 $(cat "$libraries"/libstd-*.rlib | sha256sum | cut -d' ' -f1)"
    echo "musl $musl MIT $(sha256sum <"$libraries/self-contained/libc.a" | cut -d' ' -f1)"
}

commit=$(if [ -n "$programs" ]; then commit_of "$programs/calico"; else commit_here; fi)
tests/install-go-tools.sh images "${archs[@]/#/cni-plugins-}"
mkdir -p target
staged=$(mktemp -d target/image-programs.XXXXXX)
trap 'rm -rf "$staged"' EXIT
for arch in "${archs[@]}"; do
    into=$staged/$arch
    mkdir -p "$into"
    if [ -n "$programs" ]; then
        install -m 0755 -t "$into" "$programs/calico" "$programs/kube-controllers"
        [ ! -f "$programs/kube-controllers.debug" ] || install -m 0644 -t "$into" "$programs/kube-controllers.debug"
    else
        build_programs "$arch" "$into"
    fi
    rm -rf "$out/programs/$arch"
    mkdir -p "$out/programs/$arch"
    cp --preserve=mode -t "$out/programs/$arch" "$into"/*
    foreign=$(tests/install-go-tools.sh --place "cni-plugins-$arch")
    find "$foreign" -maxdepth 1 -type f -exec install -m 0755 -t "$into" {} +
done
mkdir -p "$staged/licenses" "$staged/linked"
install -m 0644 LICENSE "$staged/licenses/LICENSE"
install -m 0644 Cargo.lock "$staged/Cargo.lock"
cp -r "$foreign/licenses" "$staged/modules"
platforms=()
for arch in "${archs[@]}"; do
    platforms+=(--filter-platform "${RUST[$arch]}")
    mkdir -p "$staged/crates/$arch"
    for package in cni-plugin kube-controllers-program; do
        cargo tree --locked -p "$package" --target "${RUST[$arch]}" --edges normal,no-proc-macro --prefix none --format '{p};{l}' | sort -u |
            sed "s# ($PWD[^)]*)##" >"$staged/crates/$arch/$package"
    done
    list_linked "$arch" >"$staged/linked/$arch"
done
cargo metadata --locked --format-version 1 "${platforms[@]}" >"$staged/metadata.json"
"$(tests/install-go-tools.sh --place images)/images" -programs "$staged" -arch "$(IFS=, && echo "${archs[*]}")" \
    -version "$VERSION" -registry "$REGISTRY" -epoch "$SOURCE_DATE_EPOCH" -revision "$commit" -out "$out" \
    ${MOST_BYTES:+-most "$MOST_BYTES"}
