//! `calico uninstall`: removes the installation, the configuration first, and keeps the files of other programs.
//! Without `--yes` it only lists the changes.

mod datastores;
mod directories;
mod files;
mod node;

use integration_tests::installation::Container;
use integration_tests::plugin::{Call, Plugins};

/// Prepares a call of `calico uninstall` in a container.
fn uninstall(container: &Container, options: &[&str]) -> Call {
    let root = container.path("").display().to_string();
    Plugins::locate().unwrap().call("calico").args(["uninstall", "--root", &root]).args(options.iter().copied())
}
