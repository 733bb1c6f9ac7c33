//! The name of the host end of a pod's interface pair.

use data_encoding::HEXLOWER;
use sha1::{Digest, Sha1};

/// The prefix of host interfaces unless `FELIX_INTERFACEPREFIX` sets another.
pub const DEFAULT_INTERFACE_PREFIX: &str = "cali";

/// The number of characters after the prefix. With `cali` they fill the 15 characters that the kernel allows.
const SUFFIX: usize = 11;

/// Returns the first entry of `FELIX_INTERFACEPREFIX`, a comma-separated list, or the default (CNI-88).
pub fn interface_prefix(felix_interface_prefix: Option<&str>) -> &str {
    match felix_interface_prefix {
        Some(list) if !list.is_empty() => list.split(',').next().unwrap_or(DEFAULT_INTERFACE_PREFIX),
        _ => DEFAULT_INTERFACE_PREFIX,
    }
}

/// Returns the host interface of a Kubernetes pod (CNI-88). Every attachment of a pod gets the same name.
pub fn pod_interface(prefix: &str, namespace: &str, pod: &str) -> String {
    let digest = HEXLOWER.encode(&Sha1::digest(format!("{namespace}.{pod}")));
    format!("{prefix}{}", &digest[..SUFFIX])
}

/// Returns the host interface of a container that is not a pod. It ignores `FELIX_INTERFACEPREFIX` (CNI-89).
pub fn container_interface(container_id: &str) -> String {
    let suffix: String = container_id.chars().take(SUFFIX).collect();
    format!("{DEFAULT_INTERFACE_PREFIX}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstream_vectors() {
        for (namespace, pod, name) in [
            ("namespace", "podname", "cali82111e10a96"),
            ("default", "nginx", "calic440f455693"),
            ("test", "test-pod-1", "cali618a041cd51"),
            ("default", "web-0", "cali0d7763386da"),
            ("ns", "p", "cali0ad56bf5e97"),
            ("golden", "web-1", "calie4cf1310d2b"),
        ] {
            assert_eq!(pod_interface(interface_prefix(None), namespace, pod), name);
        }
        assert_eq!(pod_interface(interface_prefix(Some("eni,veth,foo")), "namespace", "podname"), "eni82111e10a96");
        assert_eq!(interface_prefix(Some("")), "cali");
    }

    #[test]
    fn container_ids_are_cut_to_eleven() {
        assert_eq!(container_interface("c0ffee0100000000"), "calic0ffee01000");
        assert_eq!(container_interface("abc"), "caliabc");
        assert_eq!(container_interface("ääääääääääää"), "caliäääääääääää");
    }
}
