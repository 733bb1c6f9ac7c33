//! `calico uninstall`: takes back what was installed and nothing else, the configuration first; without `--yes`, says what
//! that would be.

mod datastores;
mod directories;
mod files;
mod node;

use integration_tests::installation::Container;
use integration_tests::plugin::{Call, Plugins};

/// A call of `calico uninstall` in a container.
fn uninstall(container: &Container, options: &[&str]) -> Call {
    let root = container.path("").display().to_string();
    Plugins::locate().unwrap().call("calico").args(["uninstall", "--root", &root]).args(options.iter().copied())
}
