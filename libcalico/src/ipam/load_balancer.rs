//! The owner and the handle of addresses that Services use.

use data_encoding::BASE64URL_NOPAD;
use sha2::{Digest, Sha256};

use super::HandleId;

/// The owner of the affinities of blocks for Services, and the node name in requests for such addresses (KC-500).
pub const LOAD_BALANCER_HOST: &str = "load-balancer";

/// Returns the handle of a Service. It depends on the uid, so a recreated Service gets another handle (KC-502).
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
