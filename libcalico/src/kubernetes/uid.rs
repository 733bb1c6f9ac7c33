//! The uid that upstream's v1 clients show: the uid of the custom resource with the bits of each byte reversed (DS-60).

use uuid::Uuid;

/// Converts the uid of a custom resource to the v3 uid, or back: the function is its own inverse. Returns `None` for a
/// text that is not a UUID. The bytes with the version and the variant are kept, so that the result is a UUID of the
/// same kind.
pub fn reverse_uid(uid: &str) -> Option<String> {
    let given = Uuid::try_parse(uid).ok()?.into_bytes();
    let mut reversed = given.map(u8::reverse_bits);
    reversed[6] = given[6];
    reversed[8] = given[8];
    Some(Uuid::from_bytes(reversed).to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn upstream_vector() {
        let (given, reversed) = ("7f9c24e8-3b0a-4c5d-9e1f-a2b3c4d5e6f7", "fe392417-dc50-4cba-9ef8-45cd23ab67ef");
        assert_eq!(reverse_uid(given).as_deref(), Some(reversed));
        assert_eq!(reverse_uid("no uid"), None);
    }

    proptest! {
        #[test]
        fn reversing_twice_changes_nothing(bytes: [u8; 16]) {
            let uid = Uuid::from_bytes(bytes).to_string();
            prop_assert_eq!(reverse_uid(&reverse_uid(&uid).unwrap()), Some(uid));
        }
    }
}
