//! The boot clock and the wall clock of a node, read together.

use std::time::{Duration, SystemTime};

use nix::time::{ClockId, clock_gettime};

/// A moment on both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Time since the machine booted, including time asleep. The clock never jumps.
    pub boot: Duration,
    /// Time since 1970 according to the node. People and time servers set this clock.
    pub calendar: Duration,
}

impl Moment {
    /// Reads both clocks.
    pub fn now() -> Self {
        let boot = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from);
        let calendar = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Moment { boot, calendar }
    }
}
