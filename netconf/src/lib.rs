//! The CNI interface of the Calico plugins: the inputs from a runtime and the output to it.
//!
//! The crate has no side effects: callers pass environment and stdin as functions.
//!
//! Read in this order:
//!
//! * [`invocation()`] determines the task of a process, and [`read_call`] validates one CNI call;
//! * [`conf`] is the network configuration, [`args`] is `CNI_ARGS`, [`rewrite`] edits a
//!   configuration for a delegated plugin;
//! * [`result`] and [`error`] are the outputs; [`printable`] escapes text from outside the program.

pub mod args;
mod call;
mod command;
pub mod conf;
mod decode;
pub mod env;
pub mod error;
mod flags;
pub mod invocation;
pub mod list;
pub mod printable;
pub mod result;
pub mod rewrite;
#[cfg(feature = "schema")]
pub mod schema;
mod version;

pub use args::CniArgs;
pub use call::{Call, CallError, read_call};
pub use command::Command;
pub use conf::NetConf;
pub use decode::{DecodeError, MAX_INPUT};
pub use error::{CniError, Code};
pub use flags::CommandOutput;
pub use invocation::{Invocation, Plugin, invocation};
pub use result::CniResult;
pub use version::Version;
