//! Files of a node.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use integration_tests::installation::{Container, OWN_BIN};

/// libcni's directory of results, below the root of the node.
pub(crate) const RESULTS: &str = "var/lib/cni/results";

pub(crate) fn make_executable(path: &Path, yes: bool) {
    let mode = if yes { 0o755 } else { 0o644 };
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Creates libcni's directory of results, and gives the image plugins that answer VERSION.
pub(crate) fn prepare(container: &Container) {
    fs::create_dir_all(container.path(RESULTS)).unwrap();
    for name in ["portmap", "loopback"] {
        let answer = r#"{"cniVersion":"1.0.0","supportedVersions":["0.3.1","1.0.0"]}"#;
        let script = format!("#!/bin/sh\ncat >/dev/null\necho '{answer}'\n");
        container
            .script(&format!("{OWN_BIN}/{name}"), &script)
            .unwrap();
    }
}
