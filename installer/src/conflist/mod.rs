//! The network configuration in the runtime's directory.
//!
//! The installer writes it last, because runtimes report the node's network as ready as soon as the file exists
//! (INST-7). Only this file replaces earlier configurations. Read `configuration`, then `write`.

mod backup;
mod configuration;
mod former;
mod ownership;
mod target;
mod write;

pub(crate) use self::backup::is_backup;
pub use self::configuration::{Conflist, ConflistError};
pub use self::former::Former;
pub use self::ownership::{foreign_in, is_calicos, is_ours_in, parse};
pub use self::target::Target;
pub use self::write::Written;

#[cfg(test)]
mod tests;
