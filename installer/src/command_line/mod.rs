//! The commands for installers and people: arguments, execution and exit status.

mod arguments;
mod doctor;
mod health;
mod help;
mod install;
mod node_command;
mod refresh_token;
mod uninstall;

pub use self::doctor::doctor;
pub use self::health::health;
pub use self::help::{help, refuse, version};
pub use self::install::install;
pub use self::refresh_token::refresh_token;
pub use self::uninstall::uninstall;
