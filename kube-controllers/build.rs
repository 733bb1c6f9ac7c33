//! Puts what profiles need in the place of what musl has (src/http/profile/signal_return.s).

use std::env;

const SIGNAL_RETURN: &str = "src/http/profile/signal_return.s";

fn main() {
    println!("cargo::rerun-if-changed={SIGNAL_RETURN}");
    let target = |what: &str| env::var(format!("CARGO_CFG_TARGET_{what}")).unwrap_or_default();
    // glibc has its own; on other architectures the unwinder knows the instructions.
    if (target("ENV").as_str(), target("ARCH").as_str()) == ("musl", "x86_64") {
        // Whole: nothing but the C library, which is linked later, asks for what is in it.
        cc::Build::new().file(SIGNAL_RETURN).link_lib_modifier("+whole-archive").compile("signal_return");
    }
}
