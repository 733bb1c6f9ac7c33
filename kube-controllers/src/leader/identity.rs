//! The identity of this process, and its pod.

use std::fs;

use uuid::Uuid;

/// File in which kubelet gives a pod its namespace.
const NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// Returns a name of this process: the pod's name and a random part. The random part makes a restarted container a
/// different candidate, which does not mistake the Lease of its predecessor for its own.
pub fn identity() -> String {
    format!("{}_{}", name_of_pod(), Uuid::new_v4())
}

/// Returns the name of this pod, or else of the host.
pub fn name_of_pod() -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").ok();
    first_said([std::env::var("POD_NAME").ok(), host]).unwrap_or_default()
}

/// Returns the namespace of this pod, or `None` outside a pod.
pub fn namespace_of_pod() -> Option<String> {
    first_said([std::env::var("POD_NAMESPACE").ok(), fs::read_to_string(NAMESPACE).ok()])
}

/// Returns the first name that exists and is not empty.
fn first_said(names: [Option<String>; 2]) -> Option<String> {
    let mut said = names.into_iter().flatten().map(|name| name.trim().to_owned());
    said.find(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_that_is_empty_is_none() {
        for (variable, file, expected) in [
            (Some("a"), Some("b\n"), Some("a")),
            (None, Some("b\n"), Some("b")),
            (Some(" "), Some("b"), Some("b")),
            (Some(""), Some("\n"), None),
            (None, None, None),
        ] {
            let found = first_said([variable, file].map(|said| said.map(str::to_owned)));
            assert_eq!(found.as_deref(), expected, "{variable:?} {file:?}");
        }
    }

    #[test]
    fn each_process_has_its_own_identity() {
        let (one, other) = (identity(), identity());
        assert_ne!(one, other);
        let host = fs::read_to_string("/proc/sys/kernel/hostname").expect("a host name");
        assert!(one.starts_with(&format!("{}_", host.trim())), "{one}");
        assert!(one.len() <= 253);
    }
}
