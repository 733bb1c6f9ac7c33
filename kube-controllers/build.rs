//! On x86_64 with musl, links the signal return code that the profiler needs
//! (src/http/profile/signal_return.s), instead of musl's own.

use std::env;

const SIGNAL_RETURN: &str = "src/http/profile/signal_return.s";

fn main() {
    println!("cargo::rerun-if-changed={SIGNAL_RETURN}");
    let target = |what: &str| env::var(format!("CARGO_CFG_TARGET_{what}")).unwrap_or_default();
    // glibc's code has suitable unwind information, and on other architectures the unwinder
    // recognizes the instructions of musl's code.
    if (target("ENV").as_str(), target("ARCH").as_str()) == ("musl", "x86_64") {
        // `+whole-archive`, because only the C library uses the object, and the C library is linked
        // later.
        cc::Build::new()
            .file(SIGNAL_RETURN)
            .link_lib_modifier("+whole-archive")
            .compile("signal_return");
    }
}
