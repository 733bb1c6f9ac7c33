use std::fmt;
use std::str::FromStr;

/// A 48-bit Ethernet address. It is displayed in lower case with colons, and parsed in the forms of
/// Go's `net.ParseMAC`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct MacAddr([u8; 6]);

/// A text that is not a 48-bit Ethernet address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid MAC address {0:?}: expected six bytes such as 0a:58:0a:41:00:02")]
pub struct MacParseError(String);

impl MacAddr {
    /// The address of the host ends of Calico's interface pairs.
    pub const HOST_SIDE: MacAddr = MacAddr([0xee; 6]);

    /// Returns the address that consists of these bytes; `None` unless they are six.
    pub(super) fn from_slice(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(MacAddr)
    }

    /// Returns the bytes in network order.
    pub const fn bytes(&self) -> [u8; 6] {
        self.0
    }

    /// Returns true if an interface can have the address: it is not all zero, and not a group
    /// (multicast) address.
    pub fn is_assignable(&self) -> bool {
        self.0 != [0; 6] && self.0[0] & 1 == 0
    }
}

impl FromStr for MacAddr {
    type Err = MacParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || MacParseError(text.to_owned());
        let (separator, group) = match text.as_bytes().get(2) {
            Some(b':') => (':', 2),
            Some(b'-') => ('-', 2),
            _ => ('.', 4),
        };
        let groups: Vec<&str> = text.split(separator).collect();
        let is_well_formed = groups
            .iter()
            .all(|g| g.len() == group && g.bytes().all(|b| b.is_ascii_hexdigit()));
        let digits = groups.concat();
        if !is_well_formed || digits.len() != 12 {
            return Err(invalid());
        }
        let value = u64::from_str_radix(&digits, 16).map_err(|_| invalid())?;
        let [_, _, bytes @ ..] = value.to_be_bytes();
        Ok(MacAddr(bytes))
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_notations_parse_equally_and_print_normalized() {
        for text in ["0A:58:0a:41:00:02", "0a-58-0a-41-00-02", "0a58.0a41.0002"] {
            let mac: MacAddr = text.parse().unwrap();
            assert_eq!(mac.to_string(), "0a:58:0a:41:00:02", "{text}");
        }
    }

    #[test]
    fn invalid_mac_text_is_rejected() {
        let bad = [
            "",
            "0a",
            "0a:58:0a:41:00",
            "0a:58:0a:41:00:02:03",
            "0a:58:0a:41:00:0g",
            "0a:58-0a:41:00:02",
            "0a580a410002",
            "a:58:0a:41:00:022",
            "0a58.0a41.00020",
            "+a:58:0a:41:00:02",
            "02:00:5e:10:00:00:00:01",
            "日本:58:0a:41:00:02",
        ];
        for text in bad {
            assert_eq!(
                text.parse::<MacAddr>(),
                Err(MacParseError(text.to_owned())),
                "{text}"
            );
        }
    }

    #[test]
    fn zero_and_multicast_macs_are_not_assignable() {
        assert!(MacAddr::HOST_SIDE.is_assignable());
        assert!(!MacAddr([0; 6]).is_assignable());
        assert!(!MacAddr([0x01, 0, 0x5e, 0, 0, 1]).is_assignable());
    }
}
