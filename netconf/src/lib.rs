//! The CNI contract of the Calico plugins: what a runtime gives them, and what they answer.
//!
//! Pure: environment and stdin come in as functions, nothing here reads a file, opens a socket or prints.
//!
//! * [`invocation()`] decides what a process has to do, [`read_call`] checks one operation;
//! * [`conf`] is the network configuration, [`args`] is `CNI_ARGS`, [`rewrite`] changes a configuration for a delegate;
//! * [`result`] and [`error`] are the answers; [`printable`] escapes what other people wrote.

pub mod args;
mod call;
mod command;
pub mod conf;
mod decode;
pub mod env;
pub mod error;
mod flags;
pub mod invocation;
mod json;
pub mod list;
pub mod printable;
pub mod result;
pub mod rewrite;
#[cfg(feature = "schema")]
pub mod schema;
pub mod version;

pub use args::CniArgs;
pub use call::{Call, CallError, read_call};
pub use command::Command;
pub use conf::NetConf;
pub use decode::{DecodeError, MAX_INPUT};
pub use env::Lookup;
pub use error::{CniError, Code};
pub use invocation::{Invocation, Plugin, Printed, invocation};
pub use result::CniResult;
pub use version::Version;
