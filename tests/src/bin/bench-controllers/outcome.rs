//! What is measured of the program on one cluster, in the order in which it happens.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::changes::Changes;
use crate::program::Program;

/// How many feeds the program has at least.
const FEEDS: usize = 4;
/// Between the first lists and the measurement of what goes on afterwards.
const CALM: Duration = Duration::from_secs(10);

/// From the start to the time when only changes are left to do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Running {
    pub(crate) sync: Duration,
    /// Processor seconds until then.
    pub(crate) sync_cpu: f64,
    /// Most memory so far, MiB.
    pub(crate) peak: f64,
    /// Memory at the end, MiB.
    pub(crate) settled: f64,
    /// Processor seconds per second.
    pub(crate) steady_cpu: f64,
    /// Changes of pods per second that really were made.
    pub(crate) rate: f64,
}

impl Running {
    /// Milliseconds of a processor that one change of a pod costs.
    pub(crate) fn milliseconds_per_change(&self) -> f64 {
        1000.0 * self.steady_cpu / self.rate
    }
}

/// Watches the program from its start until `steady` after the first lists.
pub(crate) fn run(program: &mut Program, changes: &Changes, steady: Duration) -> Result<Running> {
    let sync = program.synced(FEEDS)?;
    let sync_cpu = program.cpu()?;
    thread::sleep(CALM);
    let (cpu, made, begin) = (program.cpu()?, changes.made(), Instant::now());
    thread::sleep(steady);
    let seconds = begin.elapsed().as_secs_f64();
    let (settled, peak) = program.memory()?;
    Ok(Running {
        sync,
        sync_cpu,
        peak,
        settled,
        steady_cpu: (program.cpu()? - cpu) / seconds,
        rate: (changes.made() - made) as f64 / seconds,
    })
}

/// What became of the leaked addresses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reclaimed {
    pub(crate) blocks_written: usize,
    pub(crate) handles_deleted: usize,
    /// From the start of the program to the last write of a block: all addresses are free again.
    pub(crate) freed: Duration,
    /// To the last write of a block or handle.
    pub(crate) done: Duration,
    /// Processor seconds from the end of the measurement before.
    pub(crate) cpu: f64,
    /// Most memory since the start, MiB.
    pub(crate) peak: f64,
}
