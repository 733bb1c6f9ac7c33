//! How the plugin is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // A panic of the plugin aborts: nothing looks for unwind tables, and their index can go.
    if std::env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "musl") {
        println!("cargo::rustc-link-arg-bin=calico=-Wl,--no-eh-frame-hdr");
    }
}
