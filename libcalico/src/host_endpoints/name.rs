//! The names of a node's HostEndpoints.

use data_encoding::BASE64URL_NOPAD;
use sha2::{Digest, Sha256};

/// Longest name that Kubernetes takes.
const MAX_NAME: usize = 253;
const SUFFIX: &str = "auto-hep";

/// `NODE-auto-hep`, with the template's name and the interface's before the suffix where there are any. A name that is
/// too long becomes a hash of itself (KC-485), and so does one that Kubernetes does not take, for an interface may be
/// called `Eth_0` (KC-489).
pub fn auto_host_endpoint_name(node: &str, template: Option<&str>, interface: Option<&str>) -> String {
    let parts = [Some(node), template, interface, Some(SUFFIX)];
    let name = parts.into_iter().flatten().collect::<Vec<_>>().join("-");
    let is_valid = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.');
    // The node's name is a valid beginning and the suffix a valid end.
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
        // Made by Python's hashlib and base64, by the rule of KC-485.
        assert_eq!(of_length(254), "ewp5m34lkguin2xxvhr9f29ne8lioon3aplebjdzam-auto-hep");
        assert_eq!(
            auto_host_endpoint_name("node-1", Some("t"), Some("Eth_0")),
            "iidumfvwx1agemp3jluvyh125p7n8ijohjlelorwg-auto-hep"
        );
    }
}
