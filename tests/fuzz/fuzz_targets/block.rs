//! Feeds arbitrary stored blocks to the block operations: each block is processed or rejected, without a panic.
#![no_main]

use libcalico::ipam::{Block, HandleId};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(block) = serde_json::from_slice::<Block>(bytes) else { return };
    let handle = HandleId::new("net.container");
    let _ = (block.verify(), block.is_empty(), block.owner(), block.addresses_of(&handle));
    let _ = block.allocation(block.cidr.network());
});
