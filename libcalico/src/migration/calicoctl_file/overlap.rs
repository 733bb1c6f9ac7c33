//! [`first_overlap`]: finds ranges of addresses that overlap.

use crate::net::Cidr;

/// Returns two of the ranges that overlap, or are the same. Returns `None` if no address is in two ranges.
pub fn first_overlap(ranges: impl IntoIterator<Item = Cidr>) -> Option<(Cidr, Cidr)> {
    let mut ranges: Vec<Cidr> = ranges.into_iter().collect();
    // Of two ranges that overlap, the larger one comes first here. The larger one contains the ranges between the two.
    ranges.sort();
    ranges.windows(2).find(|pair| pair[0].overlaps(&pair[1])).map(|pair| (pair[0], pair[1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlap(ranges: &[&str]) -> Option<String> {
        let found = first_overlap(ranges.iter().map(|range| range.parse().unwrap()));
        found.map(|(first, second)| format!("{first} {second}"))
    }

    #[test]
    fn overlapping_ranges_are_found_in_any_order() {
        assert_eq!(overlap(&["10.0.0.0/28", "10.0.0.16/28", "fd00::/124", "10.0.1.0/24"]), None);
        assert_eq!(
            overlap(&["10.0.0.64/28", "10.0.0.0/24", "10.1.0.0/24"]).as_deref(),
            Some("10.0.0.0/24 10.0.0.64/28")
        );
        assert_eq!(overlap(&["fd00::10/124", "fd00::/120"]).as_deref(), Some("fd00::/120 fd00::10/124"));
        assert_eq!(overlap(&["10.0.0.0/28", "10.0.0.0/28"]).as_deref(), Some("10.0.0.0/28 10.0.0.0/28"));
        assert_eq!(overlap(&[]), None);
    }
}
