//! Prints parts of this machine's state that a test run could change, so that `make test` can
//! compare it before and after.

use std::io::{Write, stdout};

use anyhow::Result;
use integration_tests::machine::{Machine, servers};

fn main() -> Result<()> {
    let mut out = stdout().lock();
    for line in Machine::read()?.lines().chain(servers(None)) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}
