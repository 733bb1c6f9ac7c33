//! The part of an object's name that stands for a CIDR.

use crate::net::Cidr;

/// Returns `10-0-0-0-26` for `10.0.0.0/26`. Stored objects have these names, so this form must not change (IPAM-72).
pub fn cidr_name(cidr: &Cidr) -> String {
    cidr.to_string().replace(['.', ':', '/'], "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstream_vectors() {
        for (cidr, name) in [
            ("10.0.0.0/26", "10-0-0-0-26"),
            ("10.244.1.0/26", "10-244-1-0-26"),
            ("fd80:24e2:f998:72d6::/122", "fd80-24e2-f998-72d6---122"),
            ("fd00:10:244:1::/122", "fd00-10-244-1---122"),
            ("fd00:10:244::1:0:0:40/122", "fd00-10-244-0-1--40-122"),
        ] {
            assert_eq!(cidr_name(&cidr.parse().unwrap()), name);
        }
    }
}
