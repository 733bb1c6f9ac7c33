//! The names of a node's HostEndpoints.

use data_encoding::BASE64URL_NOPAD;
use sha2::{Digest, Sha256};

/// The longest name that Kubernetes accepts.
const MAX_NAME: usize = 253;
const SUFFIX: &str = "auto-hep";

/// Returns `NODE-auto-hep`, with the names of the template and the interface, if any, before the suffix. A name that is
/// too long is replaced by its hash (KC-485). So is a name that Kubernetes rejects, because an interface may be named
/// `Eth_0` (KC-489).
pub fn auto_host_endpoint_name(node: &str, template: Option<&str>, interface: Option<&str>) -> String {
    let parts = [Some(node), template, interface, Some(SUFFIX)];
    let name = parts.into_iter().flatten().collect::<Vec<_>>().join("-");
    let is_valid = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.');
    // The name begins with the node's name and ends with the suffix, which are valid there.
    if name.len() <= MAX_NAME && name.bytes().all(is_valid) {
        return name;
    }
    let mut hash = BASE64URL_NOPAD.encode(&Sha256::digest(&name));
    hash.retain(|c| !matches!(c, '-' | '_' | '.'));
    format!("{hash}-{SUFFIX}").to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_joined() {
        assert_eq!(auto_host_endpoint_name("node-1", None, None), "node-1-auto-hep");
        assert_eq!(auto_host_endpoint_name("node-1", Some("t"), None), "node-1-t-auto-hep");
        assert_eq!(auto_host_endpoint_name("node-1", Some("t"), Some("eth0")), "node-1-t-eth0-auto-hep");
    }

    #[test]
    fn long_and_invalid_names_are_hashed() {
        let of_length = |n: usize| auto_host_endpoint_name(&"n".repeat(n - "-auto-hep".len()), None, None);
        assert_eq!(of_length(253).len(), 253);
        assert!(of_length(253).starts_with("nnn"));
        // Computed with Python's hashlib and base64.
        assert_eq!(of_length(254), "ewp5m34lkguin2xxvhr9f29ne8lioon3aplebjdzam-auto-hep");
        assert_eq!(
            auto_host_endpoint_name("node-1", Some("t"), Some("Eth_0")),
            "iidumfvwx1agemp3jluvyh125p7n8ijohjlelorwg-auto-hep"
        );
    }
}
