//! `calico uninstall`: removes the installation and keeps the files of other programs.

mod datastores;
mod directories;
mod files;
mod node;

use integration_tests::installation::Container;
use integration_tests::plugin::{Call, Plugins};

fn uninstall(container: &Container, options: &[&str]) -> Call {
    let root = container.path("").display().to_string();
    Plugins::locate()
        .unwrap()
        .call("calico")
        .args(["uninstall", "--root", &root])
        .args(options.iter().copied())
}
