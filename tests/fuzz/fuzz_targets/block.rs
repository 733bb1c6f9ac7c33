//! Decodes arbitrary bytes as a block and calls functions that read a block: none of them panics.
#![no_main]

use libcalico::ipam::{Block, HandleId};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(block) = serde_json::from_slice::<Block>(bytes) else {
        return;
    };
    let handle = HandleId::new("net.container");
    let _ = (
        block.verify(),
        block.is_empty(),
        block.owner(),
        block.addresses_of(&handle),
    );
    let _ = block.allocation(block.cidr.network());
});
