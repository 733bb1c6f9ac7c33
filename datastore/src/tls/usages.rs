//! Reads the extended key usages of a certificate (RFC 5280, section 4.2.1.12).
//!
//! webpki checks them after it has refused a CA certificate as a server's, and does not expose
//! them.

const SEQUENCE: u8 = 0x30;
const OBJECT_IDENTIFIER: u8 = 0x06;
const OCTET_STRING: u8 = 0x04;
/// The tag of the extensions in a certificate.
const EXTENSIONS: u8 = 0xa3;

/// 2.5.29.37.
const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x25];
/// 1.3.6.1.5.5.7.3.1.
const SERVER_AUTHENTICATION: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x01];

/// Returns true if a certificate in DER may authenticate a server: it names that usage, or
/// restricts no usage. Returns false if the bytes are not a certificate.
pub(super) fn permits_server_authentication(certificate: &[u8]) -> bool {
    read_usages(certificate)
        .is_some_and(|usages| usages.is_none_or(|usages| usages.contains(&SERVER_AUTHENTICATION)))
}

/// Returns `None` if the bytes are not a certificate, and `Some(None)` if the certificate has no
/// such extension.
fn read_usages(certificate: &[u8]) -> Option<Option<Vec<&[u8]>>> {
    let mut extensions = read_extensions(certificate)?;
    while !extensions.is_empty() {
        let mut extension = expect(&mut extensions, SEQUENCE)?;
        if expect(&mut extension, OBJECT_IDENTIFIER)? != EXTENDED_KEY_USAGE {
            continue;
        }
        // The flag `critical` may precede the value.
        let (mut tag, mut value) = element(&mut extension)?;
        if tag != OCTET_STRING {
            (tag, value) = element(&mut extension)?;
        }
        if tag != OCTET_STRING {
            return None;
        }
        let mut list = expect(&mut value, SEQUENCE)?;
        let mut usages = Vec::new();
        while !list.is_empty() {
            usages.push(expect(&mut list, OBJECT_IDENTIFIER)?);
        }
        return Some(Some(usages));
    }
    Some(None)
}

fn read_extensions(mut certificate: &[u8]) -> Option<&[u8]> {
    let mut signed = expect(&mut certificate, SEQUENCE)?;
    let mut fields = expect(&mut signed, SEQUENCE)?;
    while !fields.is_empty() {
        let (tag, mut value) = element(&mut fields)?;
        if tag == EXTENSIONS {
            return expect(&mut value, SEQUENCE);
        }
    }
    Some(&[])
}

fn expect<'a>(input: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
    element(input)
        .filter(|(found, _)| *found == tag)
        .map(|(_, value)| value)
}

/// Takes one element off `input`, and returns its tag and its value.
fn element<'a>(input: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (&tag, rest) = input.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        // The length is in the next 1 to 3 bytes.
        0x81..=0x83 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first - 0x80))?;
            (
                bytes
                    .iter()
                    .fold(0, |length, byte| (length << 8) | usize::from(*byte)),
                rest,
            )
        }
        _ => return None,
    };
    let (value, rest) = rest.split_at_checked(length)?;
    *input = rest;
    Some((tag, value))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, KeyPair};

    use super::*;

    fn certificate(usages: &[ExtendedKeyUsagePurpose]) -> Vec<u8> {
        let mut params = CertificateParams::new(vec!["a".to_owned()]).unwrap();
        params.extended_key_usages = usages.to_vec();
        params
            .self_signed(&KeyPair::generate().unwrap())
            .unwrap()
            .der()
            .to_vec()
    }

    #[test]
    fn certificate_permits_server_authentication_if_named_or_unrestricted() {
        use ExtendedKeyUsagePurpose::{Any, ClientAuth, ServerAuth};
        for (usages, permitted) in [
            (&[][..], true),
            (&[ServerAuth], true),
            (&[ClientAuth, ServerAuth], true),
            (&[ClientAuth], false),
            (&[Any], false),
        ] {
            assert_eq!(
                permits_server_authentication(&certificate(usages)),
                permitted,
                "{usages:?}"
            );
        }
    }

    /// Each length of the text, and each byte with some other values.
    #[test]
    fn damaged_certificates_are_read_without_a_panic() {
        let whole = certificate(&[ExtendedKeyUsagePurpose::ServerAuth]);
        for length in 0..whole.len() {
            assert!(
                !permits_server_authentication(&whole[..length]),
                "the first {length} bytes"
            );
        }
        for position in 0..whole.len() {
            for value in [0, 1, 0x30, 0x7f, 0x80, 0x81, 0x82, 0x83, 0x84, 0xff] {
                let mut damaged = whole.clone();
                damaged[position] = value;
                let _ = permits_server_authentication(&damaged);
            }
        }
    }
}
