//! Runs randomized worlds: selects their seeds and the duration of the run.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;
use std::time::{Duration, Instant};

/// Number of rounds of a world. A world is small so that the seed of a failure reproduces it
/// quickly.
#[derive(Debug, Clone, Copy)]
pub struct Rounds {
    /// Rounds in a normal run.
    pub few: usize,
    /// Rounds in a long run.
    pub many: usize,
}

/// Runs worlds one after the other, each with a different seed, for `<name>_SECONDS`; without that
/// variable, one short world. `<name>_SEED` is the seed of the first world.
///
/// # Panics
/// Panics if a world panics, after printing its seed.
pub fn worlds(name: &str, rounds: Rounds, world: impl Fn(u64, usize)) {
    let number = |key: &str| {
        std::env::var(format!("{name}_{key}"))
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
    };
    let end = number("SECONDS").map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let first = number("SEED").unwrap_or_else(|| {
        if end.is_some() {
            fastrand::u64(1..1 << 32)
        } else {
            1
        }
    });
    let rounds = if end.is_some() {
        rounds.many
    } else {
        rounds.few
    };
    let test = thread::current().name().unwrap_or_default().to_owned();
    for seed in first.. {
        tell(&format!("{test}: {name}_SEED={seed}"));
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| world(seed, rounds))) {
            tell(&format!("{test}: failed with {name}_SEED={seed}"));
            resume_unwind(panic);
        }
        if end.is_none_or(|end| Instant::now() >= end) {
            return;
        }
    }
}

/// Writes around libtest's capture, so that the seed is visible even if somebody interrupts a long
/// run.
fn tell(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
