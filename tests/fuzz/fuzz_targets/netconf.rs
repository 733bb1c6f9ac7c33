//! A configuration and a result of any bytes are decoded or refused, never a crash.
#![no_main]

use libfuzzer_sys::fuzz_target;
use netconf::{CniResult, NetConf, Version};

fuzz_target!(|bytes: &[u8]| {
    let _ = NetConf::parse(bytes);
    let _ = CniResult::parse(bytes, Version::V1_1_0);
});
