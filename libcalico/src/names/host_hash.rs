//! The label by which the block affinities of a host are found on an API server.

use data_encoding::BASE32_NOPAD;
use sha3::{Digest, Sha3_256};

/// The key of the label, whose value is [`hostname_hash`].
pub const HOSTNAME_HASH_LABEL: &str = "projectcalico.org/hostname-hash";

/// Returns a hash of 52 characters, because a label's value cannot contain a long host name (IPAM-70).
pub fn hostname_hash(host: &str) -> String {
    BASE32_NOPAD.encode(&Sha3_256::digest(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstream_vectors() {
        assert_eq!(hostname_hash("node-a"), "PY3TQE2E3XMTETLM2MJO3UITKPFB27YUJ4T4E5XGPEJON3SM4QAA");
        assert_eq!(hostname_hash("node-1"), "A3XPYDATRKB7Q4SM2O5FN4RXIHBFIL2PITFX26BAIP5XAB2X74CA");
    }
}
