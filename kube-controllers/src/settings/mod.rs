//! The effective settings. In order of precedence: the environment, KubeControllersConfiguration, the defaults. This
//! module does no I/O: callers pass a lookup of variables, and the object.

mod controllers;
mod default;
mod effective;
mod environment;
mod log_severity;
mod merge;
mod running;
mod value;
pub mod variables;

pub use controllers::ControllerName;
pub use default::default_configuration;
pub use effective::{AssignIps, Gc, GcLimits, Mode, Settings};
pub use environment::{Environment, LeaderElection, Lease, StatusLiveness};
pub use log_severity::LogSeverity;
pub use merge::{Merged, merge};
pub use value::SettingsError;

#[cfg(test)]
mod tests;
