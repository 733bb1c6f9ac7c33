//! Sets the linker options of the plugin.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=no-unwind-tables.ld");
    // A panic of the plugin aborts the process, so the unwind tables and their index are not
    // needed. The options are those of Rust's own linker, which .cargo/config.toml selects for
    // musl.
    if std::env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "musl") {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/no-unwind-tables.ld");
        println!("cargo::rustc-link-arg-bin=calico=--no-eh-frame-hdr");
        println!("cargo::rustc-link-arg-bin=calico=-T{script}");
    }
}
