//! The effective settings. In order of precedence: the environment, KubeControllersConfiguration, the defaults. This
//! module does no I/O: callers pass a lookup of variables, and the object.

mod configuration;
mod controllers;
mod effective;
mod environment;
mod merge;
mod value;
pub mod variables;

pub use configuration::default_configuration;
pub use controllers::ControllerName;
pub use effective::{AssignIps, Gc, GcLimits, LogSeverity, Mode, Settings};
pub use environment::{Environment, LeaderElection, Lease, StatusLiveness};
pub use merge::{Merged, merge};
pub use value::SettingsError;

#[cfg(test)]
mod tests;
