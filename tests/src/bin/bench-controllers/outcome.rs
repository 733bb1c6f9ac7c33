//! The measurements of the program on one cluster, in chronological order.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::changes::Changes;
use crate::program::Program;

/// Smallest number of watches in the metrics of the program with which its first lists count as
/// complete.
const FEEDS: usize = 4;
/// Pause between the first lists and the measurement of the steady state.
const CALM: Duration = Duration::from_secs(10);

/// Measurements from the start of the program to the end of the steady state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Running {
    pub(crate) sync: Duration,
    /// Processor seconds until all lists were complete.
    pub(crate) sync_cpu: f64,
    /// Peak memory, MiB.
    pub(crate) peak: f64,
    /// Memory at the end, MiB.
    pub(crate) settled: f64,
    /// Processor seconds per second in the steady state.
    pub(crate) steady_cpu: f64,
    /// Actual number of pod changes per second.
    pub(crate) rate: f64,
}

impl Running {
    pub(crate) fn milliseconds_per_change(&self) -> f64 {
        1000.0 * self.steady_cpu / self.rate
    }
}

/// Waits for the first lists of the program, then [`CALM`], and then measures the steady state.
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

/// Measurements of the release of the leaked addresses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reclaimed {
    pub(crate) blocks_written: usize,
    pub(crate) handles_deleted: usize,
    /// Time from the start of the program to its last write of a block.
    pub(crate) freed: Duration,
    /// Time from the start of the program to the last write of a block or deletion of a handle.
    pub(crate) done: Duration,
    /// Processor seconds from the end of the steady-state measurement to the end of the release.
    pub(crate) cpu: f64,
    /// Peak memory since the start, MiB.
    pub(crate) peak: f64,
}
