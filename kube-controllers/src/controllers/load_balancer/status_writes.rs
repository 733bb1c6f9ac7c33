//! [`StatusWrites`]: notices another program that overwrites the addresses in the status of a
//! Service.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use libcalico::api::ObjectKey;
use tokio::time::Instant;

/// Number of writes of the same addresses, in [`WINDOW`], after which the controller pauses.
const LIMIT: usize = 5;
const WINDOW: Duration = Duration::from_secs(60);
/// The pause after the last write. Without it, the two programs would write without end.
pub(super) const PAUSE: Duration = Duration::from_secs(300);
/// The time after the last write for which a Service is remembered.
const MEMORY: Duration = Duration::from_secs(3600);

/// The recent writes of the status, by Service.
#[derive(Debug, Default)]
pub(super) struct StatusWrites(BTreeMap<ObjectKey, Published>);

#[derive(Debug, Default)]
struct Published {
    /// A Service of the same name that was created again is another one.
    uid: String,
    addresses: Vec<IpAddr>,
    /// The times of the writes since the window began, the latest last.
    writes: Vec<Instant>,
    is_reported: bool,
}

/// A pause in the writes of a status.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pause {
    pub(super) left: Duration,
    /// True for the first pause, which is to be reported.
    pub(super) is_new: bool,
}

impl StatusWrites {
    /// Returns the pause in which these addresses must not be written, if there is one.
    pub(super) fn pause(
        &mut self,
        key: &ObjectKey,
        uid: &str,
        addresses: &[IpAddr],
        now: Instant,
    ) -> Option<Pause> {
        let is_same =
            |published: &&mut Published| published.uid == uid && published.addresses == addresses;
        let published = self.0.get_mut(key).filter(is_same)?;
        let (first, last) = (*published.writes.first()?, *published.writes.last()?);
        let left = (last + PAUSE).saturating_duration_since(now);
        if published.writes.len() < LIMIT || last - first > WINDOW || left.is_zero() {
            return None;
        }
        let is_new = !std::mem::replace(&mut published.is_reported, true);
        Some(Pause { left, is_new })
    }

    /// Forgets the writes of a Service whose addresses the controller withdraws.
    pub(super) fn forget(&mut self, key: &ObjectKey) {
        self.0.remove(key);
    }

    /// Records a write of these addresses.
    pub(super) fn record(
        &mut self,
        key: &ObjectKey,
        uid: &str,
        addresses: &[IpAddr],
        now: Instant,
    ) {
        self.0.retain(|_, published| {
            published
                .writes
                .last()
                .is_some_and(|last| *last + MEMORY > now)
        });
        let published = self.0.entry(key.clone()).or_default();
        if published.uid != uid || published.addresses != addresses {
            *published = Published {
                uid: uid.to_owned(),
                addresses: addresses.to_vec(),
                ..Published::default()
            };
        }
        // After a pause, the older writes do not count.
        published.writes.retain(|write| now - *write <= WINDOW);
        published.writes.push(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn repeated_writes_pause_and_are_reported_once() {
        let (key, begin) = (ObjectKey::namespaced("n", "s"), Instant::now());
        let ips: [IpAddr; 1] = ["10.0.0.1".parse().unwrap()];
        let mut writes = StatusWrites::default();
        for second in 0..5 {
            assert_eq!(writes.pause(&key, "u", &ips, begin + seconds(second)), None);
            writes.record(&key, "u", &ips, begin + seconds(second));
        }
        let at = |writes: &mut StatusWrites, second| {
            writes.pause(&key, "u", &ips, begin + seconds(second))
        };
        assert_eq!(
            at(&mut writes, 5),
            Some(Pause {
                left: seconds(299),
                is_new: true
            })
        );
        assert_eq!(
            at(&mut writes, 6),
            Some(Pause {
                left: seconds(298),
                is_new: false
            })
        );
        assert_eq!(
            writes.pause(&key, "u", &[], begin + seconds(6)),
            None,
            "other addresses"
        );
        assert_eq!(
            writes.pause(&key, "v", &ips, begin + seconds(6)),
            None,
            "the Service was created again"
        );
        assert_eq!(at(&mut writes, 304), None);
        for second in 304..309 {
            assert_eq!(at(&mut writes, second), None);
            writes.record(&key, "u", &ips, begin + seconds(second));
        }
        assert_eq!(
            at(&mut writes, 310),
            Some(Pause {
                left: seconds(298),
                is_new: false
            })
        );
        writes.record(
            &ObjectKey::namespaced("n", "other"),
            "u",
            &ips,
            begin + seconds(4000),
        );
        assert_eq!(writes.0.len(), 1, "a Service without writes is removed");
    }

    #[test]
    fn rare_writes_do_not_pause() {
        let (key, begin) = (ObjectKey::namespaced("n", "s"), Instant::now());
        let mut writes = StatusWrites::default();
        for number in 0..100 {
            let now = begin + seconds(number * 20);
            assert_eq!(writes.pause(&key, "u", &[], now), None);
            writes.record(&key, "u", &[], now);
        }
    }
}
