//! Prints the JSON Schema of the network configuration:
//! `cargo run -p netconf --features schema > deploy/netconf.schema.json`.

use std::io::{self, Write};

fn main() -> io::Result<()> {
    io::stdout().write_all(netconf::schema::published().as_bytes())
}
