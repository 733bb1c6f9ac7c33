//! Decodes arbitrary bytes as a configuration and as a result: they are decoded or rejected,
//! without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use netconf::{CniResult, NetConf, Version};

fuzz_target!(|bytes: &[u8]| {
    let _ = NetConf::parse(bytes);
    let _ = CniResult::parse(bytes, Version::V1_1_0);
});
