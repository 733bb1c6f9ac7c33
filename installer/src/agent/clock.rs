//! The two clocks of a node, looked at together.

use std::time::{Duration, SystemTime};

use nix::time::{ClockId, clock_gettime};

/// A moment by both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Since the machine was started, sleep included. Goes on evenly.
    pub boot: Duration,
    /// Since 1970, as far as the node knows. People and time servers set it.
    pub calendar: Duration,
}

impl Moment {
    /// Now.
    pub fn now() -> Self {
        let boot = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from);
        let calendar = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Moment { boot, calendar }
    }
}
