//! [`Reservations`]: the addresses that automatic assignment skips (IPAM-101).

use std::net::IpAddr;

use crate::api::IpReservation;
use crate::net::Cidr;

/// An entry of an IPReservation that is neither a CIDR nor an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "IPReservation {reservation}: ignoring the entry `{entry}`, which is neither a CIDR nor an IP \
     address"
)]
pub struct MalformedReservation {
    /// The name of the IPReservation.
    pub reservation: String,
    /// The entry.
    pub entry: String,
}

/// All reserved ranges, none of which contains another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reservations {
    ranges: Vec<Cidr>,
}

impl Reservations {
    /// Returns an empty set.
    pub fn none() -> Self {
        Self::default()
    }

    /// Creates a set from ranges, which may overlap.
    pub fn new(ranges: impl IntoIterator<Item = Cidr>) -> Self {
        let mut ranges: Vec<Cidr> = ranges.into_iter().collect();
        // A range sorts before the ranges inside it.
        ranges.sort();
        ranges.dedup_by(|inner, outer| outer.covers(inner));
        Reservations { ranges }
    }

    /// Returns the ranges that the stored objects reserve, and the malformed entries.
    pub fn of<'a>(
        objects: impl IntoIterator<Item = &'a IpReservation>,
    ) -> (Self, Vec<MalformedReservation>) {
        let (mut ranges, mut malformed) = (Vec::new(), Vec::new());
        for object in objects {
            for entry in &object.spec.reserved_cidrs {
                match Cidr::parse_or_host(entry) {
                    Some(range) => ranges.push(range),
                    None => malformed.push(MalformedReservation {
                        reservation: object.metadata.name.clone(),
                        entry: entry.clone(),
                    }),
                }
            }
        }
        (Reservations::new(ranges), malformed)
    }

    /// Returns true if no address is reserved.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns true if `ip` is reserved.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.range_of(ip).is_some()
    }

    /// Returns true if every address of `block` is reserved.
    pub fn covers(&self, block: &Cidr) -> bool {
        !self.is_empty() && self.within(block) == block.size()
    }

    /// Returns the single range that covers `block`, if there is one.
    pub fn covering(&self, block: &Cidr) -> Option<Cidr> {
        self.range_of(block.network())
            .filter(|range| range.covers(block))
    }

    /// Returns the number of reserved addresses in `cidr`.
    pub fn within(&self, cidr: &Cidr) -> u128 {
        if self.covering(cidr).is_some() {
            return cidr.size();
        }
        let inside = self.ranges.iter().filter(|range| cidr.covers(range));
        inside.fold(0, |sum: u128, range| sum.saturating_add(range.size()))
    }

    /// Returns the reserved ranges, none of which contains another.
    pub fn ranges(&self) -> &[Cidr] {
        &self.ranges
    }

    fn range_of(&self, ip: IpAddr) -> Option<Cidr> {
        let after = self.ranges.partition_point(|range| range.network() <= ip);
        self.ranges[..after]
            .last()
            .copied()
            .filter(|range| range.contains(ip))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::IpReservationSpec;

    fn reservations(ranges: &[&str]) -> Reservations {
        Reservations::new(ranges.iter().map(|text| Cidr::parse_or_host(text).unwrap()))
    }

    fn cidr(text: &str) -> Cidr {
        text.parse().unwrap()
    }

    #[test]
    fn reservation_entries_are_trimmed_and_masked_and_invalid_entries_reported() {
        let spec = IpReservationSpec {
            reserved_cidrs: [
                " 10.0.0.5/24 ",
                "10.1.0.1",
                "fd00::1",
                "\tfd01::5/64\n",
                "",
                "10.0.0.0/33",
                "ten",
            ]
            .map(String::from)
            .into(),
            ..IpReservationSpec::default()
        };
        let (parsed, malformed) = Reservations::of([&IpReservation::new("office", spec)]);
        let ranges = ["10.0.0.0/24", "10.1.0.1/32", "fd00::1/128", "fd01::/64"].map(cidr);
        assert_eq!(parsed.ranges(), ranges);
        assert_eq!(
            malformed
                .iter()
                .map(|m| m.entry.as_str())
                .collect::<Vec<_>>(),
            ["", "10.0.0.0/33", "ten"]
        );
        assert_eq!(
            malformed[2].to_string(),
            "IPReservation office: ignoring the entry `ten`, which is neither a CIDR nor an IP \
             address"
        );
    }

    #[test]
    fn address_is_reserved_if_within_a_reserved_range() {
        let reserved = reservations(&["10.0.0.0/30", "10.0.0.8", "fd00::/127"]);
        for (ip, expected) in [
            ("9.255.255.255", false),
            ("10.0.0.0", true),
            ("10.0.0.3", true),
            ("10.0.0.4", false),
            ("10.0.0.8", true),
            ("10.0.0.9", false),
            ("fd00::1", true),
            ("fd00::2", false),
        ] {
            assert_eq!(reserved.contains(ip.parse().unwrap()), expected, "{ip}");
        }
    }

    #[test]
    fn block_is_covered_by_a_single_range_or_by_a_union() {
        let block = cidr("10.0.0.0/30");
        for (ranges, covered, within) in [
            (&[][..], false, 0),
            (&["10.0.0.0/8"][..], true, 4),
            (&["10.0.0.0/30"], true, 4),
            (&["10.0.0.0/31", "10.0.0.2/31"], true, 4),
            (&["10.0.0.0/31", "10.0.0.2", "10.0.0.3"], true, 4),
            (&["10.0.0.0/31", "10.0.0.2"], false, 3),
            // Each address counts once.
            (
                &[
                    "10.0.0.0/31",
                    "10.0.0.0",
                    "10.0.0.1",
                    "10.0.0.0/31",
                    "10.0.0.2",
                ],
                false,
                3,
            ),
            (&["10.0.0.4/30", "0.0.0.0/32", "fd00::/8"], false, 0),
        ] {
            let reserved = reservations(ranges);
            assert_eq!(
                (reserved.covers(&block), reserved.within(&block)),
                (covered, within),
                "{ranges:?}"
            );
        }
        assert!(reservations(&["::/0"]).covers(&cidr("fd00::/122")));
    }

    #[test]
    fn covering_returns_the_single_range_that_covers_the_block() {
        let reserved = reservations(&["10.0.0.0/24", "10.1.0.0/31", "10.1.0.2/31"]);
        assert_eq!(
            reserved.covering(&cidr("10.0.0.64/26")),
            Some(cidr("10.0.0.0/24"))
        );
        assert_eq!(reserved.covering(&cidr("10.1.0.0/30")), None);
    }
}
