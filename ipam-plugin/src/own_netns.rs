//! Detects the plugin's own network namespace. A container in that namespace would use the host's network.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The calling thread's namespace; /proc/self is the main thread's.
const OWN: &str = "/proc/thread-self/ns/net";

/// Returns true if this file is the network namespace of the calling thread.
pub fn is_own_netns(file: &Metadata) -> io::Result<bool> {
    let own = fs::metadata(OWN)?;
    Ok((file.dev(), file.ino()) == (own.dev(), own.ino()))
}

/// Does the same for a path, before any other work. A path that cannot be read returns false; the step that uses it
/// reports the error.
pub fn is_path_to_own_netns(path: &Path) -> bool {
    fs::metadata(path).and_then(|file| is_own_netns(&file)).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_own_namespace_by_any_path_is_own() {
        for own in ["/proc/self/ns/net", "/proc/thread-self/ns/net"] {
            assert!(is_path_to_own_netns(Path::new(own)), "{own}");
        }
        for other in ["/proc/self/ns/mnt", "/proc/self/status", "/no/such/file", ""] {
            assert!(!is_path_to_own_netns(Path::new(other)), "{other}");
        }
    }
}
