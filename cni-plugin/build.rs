//! How the plugin is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=no-unwind-tables.ld");
    println!("cargo::rerun-if-env-changed=RUSTC_LINKER");
    // A panic of the plugin aborts: nothing looks for unwind tables, which go with their index.
    if std::env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "musl") {
        // The linker is asked itself where it is the one that rustc calls (deploy/images/build.sh), and through the C compiler else.
        let is_linker = std::env::var("RUSTC_LINKER").is_ok_and(|linker| linker.ends_with("lld"));
        let through = if is_linker { "" } else { "-Wl," };
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/no-unwind-tables.ld");
        println!("cargo::rustc-link-arg-bin=calico={through}--no-eh-frame-hdr");
        println!("cargo::rustc-link-arg-bin=calico={through}-T{script}");
    }
}
