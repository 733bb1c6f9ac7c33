//! Readiness of the process, for probes over HTTP ([`crate::http`]) and through a file that `check-status` reads.

pub mod check;
mod component;
mod file;
mod health;
mod heartbeat;
mod watchdog;

pub use component::{Component, Status};
pub use file::{Condition, DEFAULT_FILE, FileError, StatusFile};
pub use health::watch_health;
pub use heartbeat::beat;
pub use watchdog::Watchdog;

#[cfg(test)]
mod tests;
