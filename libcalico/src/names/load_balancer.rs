//! What holds the addresses of a Service.

use data_encoding::BASE64URL_NOPAD;
use sha2::{Digest, Sha256};

use crate::ipam::HandleId;

/// The owner of the blocks that Services' addresses are from, and the node in requests for them (KC-500).
pub const LOAD_BALANCER_HOST: &str = "load-balancer";

/// The handle of a Service. A namesake with another uid has another one (KC-502).
pub fn load_balancer_handle(namespace: &str, name: &str, uid: &str) -> HandleId {
    let mut hash = BASE64URL_NOPAD.encode(&Sha256::digest(format!("{name}-{namespace}-{uid}").to_lowercase()));
    hash.retain(|c| !matches!(c, '-' | '_' | '.'));
    HandleId::new(format!("lb-{hash}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstream_vector() {
        let handle = load_balancer_handle("test-namespace", "test-service", "1234");
        assert_eq!(handle.to_string(), "lb-CcByVDWerSL9WUOKfbkyPBft2m9Xxf822Zvhn2YSpts");
        assert_eq!(load_balancer_handle("Test-Namespace", "test-service", "1234"), handle);
        assert_ne!(load_balancer_handle("test-namespace", "test-service", "1235"), handle);
    }
}
