//! [`Suspects`]: the dead interfaces between two looks at the node.

use std::time::Duration;

use crate::names::InterfaceAlias;

/// The interval between two looks. An interface is removed after it was dead in two looks that are at least this far
/// apart, and in each look between them. On an API server a pod exists before its interface. On etcd an ADD writes the
/// endpoint after the interface, with at most three writes and two reads of 10 s each, so within a shorter time.
pub const LOOK_INTERVAL: Duration = Duration::from_secs(60);

/// An interface that no container uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLink {
    /// The name of the interface.
    pub name: String,
    /// The index of the interface. A later interface with the same name has another.
    pub index: u32,
    /// The container and the pod for which the interface was created.
    pub alias: InterfaceAlias,
}

/// The interfaces that were dead in the last look, with the time of the first look of an unbroken series.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Suspects(Vec<(DeadLink, Duration)>);

impl Suspects {
    /// Records a look at `now`, on a clock that never jumps, which found the interfaces `dead`. Returns those to
    /// remove.
    pub fn look(&mut self, now: Duration, dead: Vec<DeadLink>) -> Vec<DeadLink> {
        let former = std::mem::take(&mut self.0);
        let first_seen =
            |link: &DeadLink| former.iter().find(|(known, _)| known == link).map_or(now, |(_, since)| *since);
        let with_time = |link: DeadLink| {
            let since = first_seen(&link);
            (link, since)
        };
        self.0 = dead.into_iter().map(with_time).collect();
        let due = self.0.iter().filter(|(_, since)| now.saturating_sub(*since) >= LOOK_INTERVAL);
        due.map(|(link, _)| link.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(name: &str, index: u32, container: &str) -> DeadLink {
        DeadLink { name: name.to_owned(), index, alias: InterfaceAlias::for_container(container) }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn second_look_needs_sixty_seconds_and_the_same_interface() {
        let mut suspects = Suspects::default();
        assert_eq!(suspects.look(at(0), vec![link("cali1", 7, "c1")]), []);
        assert_eq!(suspects.look(at(59), vec![link("cali1", 7, "c1")]), []);
        assert_eq!(suspects.look(at(60), vec![link("cali1", 7, "c1")]), [link("cali1", 7, "c1")]);
        for other in [link("cali1", 8, "c1"), link("cali1", 7, "c2"), link("cali2", 7, "c1")] {
            let mut suspects = Suspects::default();
            suspects.look(at(0), vec![link("cali1", 7, "c1")]);
            assert_eq!(suspects.look(at(60), vec![other.clone()]), [], "{other:?}");
        }
    }

    #[test]
    fn look_that_finds_an_interface_in_use_begins_a_new_series() {
        let mut suspects = Suspects::default();
        suspects.look(at(0), vec![link("cali1", 7, "c1")]);
        suspects.look(at(60), Vec::new());
        assert_eq!(suspects.look(at(120), vec![link("cali1", 7, "c1")]), []);
        assert_eq!(suspects.look(at(180), vec![link("cali1", 7, "c1")]), [link("cali1", 7, "c1")]);
    }

    #[test]
    fn interface_that_could_not_be_removed_stays_due() {
        let mut suspects = Suspects::default();
        let dead = || vec![link("cali1", 7, "c1"), link("cali2", 9, "c2")];
        suspects.look(at(0), vec![link("cali1", 7, "c1")]);
        assert_eq!(suspects.look(at(60), dead()), [link("cali1", 7, "c1")]);
        assert_eq!(suspects.look(at(120), dead()), dead());
    }
}
