//! `make bench-controllers`: the resources that kube-controllers needs on large clusters, beside
//! their goals.
//!
//! `bench-controllers PROGRAM WORK-DIR [SCENARIO…]` prints the tables of docs/performance.md. The
//! scenarios:
//!
//! * `real`: 500 nodes, 20,000 pods and 22,000 addresses in a real API server;
//! * `served`: 5,000 nodes, 150,000 pods and 40,000 blocks. No API server fits on this machine
//!   beside the program with that many objects, so a small server of our own ([`server`]) serves
//!   lists and watches of them over TLS and HTTP/2, accepts writes, and counts them;
//! * `growth`: the cost of one pod change among 10,000, 50,000 and 150,000 pods, on our own server;
//! * `migration`, only if it is named (`make bench-migration`): a migration of 20,000 objects to
//!   `projectcalico.org/v3` in a real API server.
//!
//! All blocks are full, except at most the last one. Each pod is at least 4 kB of JSON,
//! managedFields included.

mod changes;
mod cluster;
mod filling;
mod migration;
mod outcome;
mod program;
mod scenario;
mod server;
mod table;
mod texts;

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [program, work, scenarios @ ..] = args.as_slice() else {
        bail!("usage: bench-controllers PROGRAM WORK-DIR [real|served|growth|migration]…")
    };
    let program = Path::new(program)
        .canonicalize()
        .with_context(|| program.clone())?;
    std::fs::create_dir_all(work)?;
    let work = Path::new(work).canonicalize()?;
    let all = ["real", "served", "growth"].map(str::to_owned);
    let scenarios = if scenarios.is_empty() {
        &all[..]
    } else {
        scenarios
    };
    let mut text = String::new();
    for name in scenarios {
        text += &scenario::run(name, &program, &work)?;
        text.push('\n');
    }
    Ok(write!(std::io::stdout(), "{text}")?)
}
