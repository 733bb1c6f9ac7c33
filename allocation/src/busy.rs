//! [`BusyAddress`]: an address that is free in IPAM although this node's kernel has a route to it.
//!
//! The file is a hint for the next ADDs of the node. Without it, each of them might get the
//! address, find the route and request another address.

use std::net::IpAddr;
use std::path::Path;

use serde::{Deserialize, Serialize};
use time::{Duration, OffsetDateTime};

use crate::hint_file;

/// The file with the notes. A reboot deletes it, as it deletes the routes.
pub const FILE: &str = "/var/run/calico/cni/busy_addresses";

const VALIDITY: Duration = Duration::MINUTE;

/// Maximum number of notes; the oldest are removed first.
const MAX_NOTES: usize = 128;

/// Maximum size of a file that is read, in bytes. The plugin writes no larger file.
const MAX_FILE_SIZE: u64 = 1 << 18;

/// In characters.
const LONGEST_ROUTE: usize = 200;

/// An address to which the kernel has a route that no ADD may replace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BusyAddress {
    /// The address.
    pub address: IpAddr,
    /// A description of the route: `through interface cali9 (protocol Static)`.
    pub route: String,
    /// The end of the note's validity, in seconds since 1970.
    pub until: i64,
}

/// Returns the notes of `file` that are valid at `now`, the oldest first.
pub fn valid_notes(file: &Path, now: OffsetDateTime) -> Vec<BusyAddress> {
    let mut notes: Vec<BusyAddress> = hint_file::read(file, MAX_FILE_SIZE).unwrap_or_default();
    // Setting the clock back does not prolong a note.
    let (now, latest) = (now.unix_timestamp(), (now + VALIDITY).unix_timestamp());
    notes.retain(|note| now < note.until && note.until <= latest);
    notes
}

/// Stores in `file` that `address` is busy for a minute from `now`. Failure is only logged. Of two
/// concurrent notes, one may be lost.
pub fn record(file: &Path, address: IpAddr, route: &str, now: OffsetDateTime) {
    let mut notes = valid_notes(file, now);
    notes.retain(|note| note.address != address);
    let route = route.chars().take(LONGEST_ROUTE).collect();
    notes.push(BusyAddress {
        address,
        route,
        until: (now + VALIDITY).unix_timestamp(),
    });
    notes.drain(..notes.len().saturating_sub(MAX_NOTES));
    if let Err(error) = hint_file::write(file, &notes) {
        tracing::debug!(
            file = %file.display(), %address, %error,
            "cannot store the busy address; the next ADD may get the address"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    const NOW: OffsetDateTime = time::macros::datetime!(2026-08-22 01:02:03 UTC);

    fn addresses(file: &Path, now: OffsetDateTime) -> Vec<String> {
        valid_notes(file, now)
            .iter()
            .map(|note| note.address.to_string())
            .collect()
    }

    #[test]
    fn busy_address_record_expires_after_a_minute() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("cni/busy_addresses");
        assert_eq!(valid_notes(&file, NOW), []);
        record(
            &file,
            "10.0.0.1".parse().unwrap(),
            "through interface live0",
            NOW,
        );
        record(
            &file,
            "fd00::1".parse().unwrap(),
            "of type BlackHole",
            NOW + Duration::seconds(30),
        );
        let first = &valid_notes(&file, NOW)[..1];
        assert_eq!(
            (&*first[0].route, first[0].until),
            ("through interface live0", 1787360583)
        );
        assert_eq!(
            addresses(&file, NOW + Duration::seconds(59)),
            ["10.0.0.1", "fd00::1"]
        );
        assert_eq!(addresses(&file, NOW + Duration::seconds(60)), ["fd00::1"]);
        assert_eq!(addresses(&file, NOW + Duration::seconds(90)), [""; 0]);
        assert_eq!(addresses(&file, NOW - Duration::seconds(1)), [""; 0]);
        let left: Vec<_> = fs::read_dir(file.parent().unwrap()).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }

    #[test]
    fn repeated_busy_address_record_restarts_its_minute() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("busy_addresses");
        for (address, seconds) in [("10.0.0.1", 0), ("10.0.0.2", 10), ("10.0.0.1", 20)] {
            record(
                &file,
                address.parse().unwrap(),
                "",
                NOW + Duration::seconds(seconds),
            );
        }
        assert_eq!(
            addresses(&file, NOW + Duration::seconds(20)),
            ["10.0.0.2", "10.0.0.1"]
        );
        assert_eq!(addresses(&file, NOW + Duration::seconds(75)), ["10.0.0.1"]);
    }

    #[test]
    fn invalid_busy_address_file_is_ignored_and_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("busy_addresses");
        let good = r#"[{"address":"10.0.0.1","route":"","until":1787360583}]"#;
        let elsewhere = directory.path().join("elsewhere");
        fs::write(&elsewhere, good).unwrap();
        for text in [
            "",
            "{",
            "{}",
            r#"["10.0.0.1"]"#,
            "\u{0}",
            &format!("{good}{}", " ".repeat(1 << 18)),
        ] {
            fs::write(&file, text).unwrap();
            assert_eq!(valid_notes(&file, NOW), [], "{text:?}");
        }
        fs::write(&file, good).unwrap();
        assert_eq!(addresses(&file, NOW), ["10.0.0.1"]);
        fs::remove_file(&file).unwrap();
        symlink(&elsewhere, &file).unwrap();
        assert_eq!(valid_notes(&file, NOW), []);
        record(&file, "10.0.0.2".parse().unwrap(), "", NOW);
        assert_eq!(addresses(&file, NOW), ["10.0.0.2"]);
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), good);
        record(
            Path::new("/proc/nowhere/busy"),
            "10.0.0.2".parse().unwrap(),
            "",
            NOW,
        );
    }

    #[test]
    fn busy_address_file_is_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("busy_addresses");
        const ENOUGH: u32 = 2 * MAX_NOTES as u32;
        // The longest escape in JSON, and the longest character.
        for character in ["\u{1}", "\u{10ffff}"] {
            for number in 0..ENOUGH {
                record(
                    &file,
                    std::net::Ipv4Addr::from(number).into(),
                    &character.repeat(1000),
                    NOW,
                );
            }
            let notes = valid_notes(&file, NOW);
            assert_eq!(
                (notes.len(), notes[MAX_NOTES - 1].address),
                (MAX_NOTES, std::net::Ipv4Addr::from(ENOUGH - 1).into())
            );
        }
    }

    #[test]
    fn busy_addresses_of_0_1_0_are_read_and_written_unchanged() {
        let stored = include_str!("../../tests/formats/0.1.0/hints/busy_addresses");
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("busy_addresses");
        fs::write(&file, stored).unwrap();
        let notes = valid_notes(&file, NOW);
        let values: Vec<_> = notes
            .iter()
            .map(|note| (note.address.to_string(), note.route.as_str(), note.until))
            .collect();
        let route = "through interface live0 (protocol Static)";
        assert_eq!(
            values,
            [
                ("10.244.0.5".to_owned(), route, 1_787_360_583),
                (
                    "fd00:10:244::5".to_owned(),
                    "of type BlackHole",
                    1_787_360_583
                ),
            ]
        );
        fs::remove_file(&file).unwrap();
        for note in &notes {
            record(&file, note.address, &note.route, NOW);
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), stored);
    }
}
