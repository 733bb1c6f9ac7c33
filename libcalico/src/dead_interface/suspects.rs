//! [`Suspects`]: the dead interfaces between two looks at the node.

use std::time::Duration;

use crate::names::InterfaceAlias;

/// The interval between two looks. An interface whose pod the datastore names is removed after it
/// was dead in two looks that are at least this far apart, and in each look between them. On an API
/// server such a pod exists before its interface, so it has an endpoint. On etcd an ADD writes the
/// endpoint after the interface, while its process runs.
pub const LOOK_INTERVAL: Duration = Duration::from_secs(60);

/// The time for which an interface has to be dead if the datastore names no pod for it, as for the
/// target of a live migration: the allocation has the handle of the virtual machine, and no host
/// route leads to the address. After the ADD such a pod has no evidence of its use until the
/// container runtime has started its sandbox. The runtime has to do so within the timeout of
/// kubelet for a sandbox: twice `runtimeRequestTimeout`, by default 4 minutes.
pub const UNNAMED_POD_CONFIRMATION: Duration = Duration::from_secs(600);

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

/// The interfaces that were dead in the last look, with the time of the first look of an unbroken
/// series.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Suspects(Vec<(DeadLink, Duration)>);

impl Suspects {
    /// Records a look at `now`, on a clock that never jumps, which found the interfaces `dead`,
    /// each with the time for which it has to be dead. Returns those to remove.
    pub fn look(&mut self, now: Duration, dead: Vec<(DeadLink, Duration)>) -> Vec<DeadLink> {
        let former = std::mem::take(&mut self.0);
        let first_seen = |link: &DeadLink| {
            former
                .iter()
                .find(|(known, _)| known == link)
                .map_or(now, |(_, since)| *since)
        };
        let mut due = Vec::new();
        for (link, confirmation) in dead {
            let since = first_seen(&link);
            if now.saturating_sub(since) >= confirmation {
                due.push(link.clone());
            }
            self.0.push((link, since));
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(name: &str, index: u32, container: &str) -> DeadLink {
        DeadLink {
            name: name.to_owned(),
            index,
            alias: InterfaceAlias::for_container(container),
        }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// An interface of a pod that the datastore names.
    fn dead(name: &str, index: u32, container: &str) -> (DeadLink, Duration) {
        (link(name, index, container), LOOK_INTERVAL)
    }

    #[test]
    fn second_look_needs_sixty_seconds_and_the_same_interface() {
        let mut suspects = Suspects::default();
        assert_eq!(suspects.look(at(0), vec![dead("cali1", 7, "c1")]), []);
        assert_eq!(suspects.look(at(59), vec![dead("cali1", 7, "c1")]), []);
        assert_eq!(
            suspects.look(at(60), vec![dead("cali1", 7, "c1")]),
            [link("cali1", 7, "c1")]
        );
        for other in [
            dead("cali1", 8, "c1"),
            dead("cali1", 7, "c2"),
            dead("cali2", 7, "c1"),
        ] {
            let mut suspects = Suspects::default();
            suspects.look(at(0), vec![dead("cali1", 7, "c1")]);
            assert_eq!(suspects.look(at(60), vec![other.clone()]), [], "{other:?}");
        }
    }

    #[test]
    fn interface_of_an_unnamed_pod_is_due_after_ten_minutes() {
        let (mut suspects, unnamed) = (Suspects::default(), || {
            (link("cali1", 7, "c1"), UNNAMED_POD_CONFIRMATION)
        });
        for seconds in [0, 60, 599] {
            assert_eq!(suspects.look(at(seconds), vec![unnamed()]), [], "{seconds}");
        }
        assert_eq!(
            suspects.look(at(600), vec![unnamed()]),
            [link("cali1", 7, "c1")]
        );
    }

    #[test]
    fn look_that_finds_an_interface_in_use_begins_a_new_series() {
        let mut suspects = Suspects::default();
        suspects.look(at(0), vec![dead("cali1", 7, "c1")]);
        suspects.look(at(60), Vec::new());
        assert_eq!(suspects.look(at(120), vec![dead("cali1", 7, "c1")]), []);
        assert_eq!(
            suspects.look(at(180), vec![dead("cali1", 7, "c1")]),
            [link("cali1", 7, "c1")]
        );
    }

    #[test]
    fn interface_that_could_not_be_removed_stays_due() {
        let mut suspects = Suspects::default();
        let both = || vec![dead("cali1", 7, "c1"), dead("cali2", 9, "c2")];
        suspects.look(at(0), vec![dead("cali1", 7, "c1")]);
        assert_eq!(suspects.look(at(60), both()), [link("cali1", 7, "c1")]);
        assert_eq!(
            suspects.look(at(120), both()),
            [link("cali1", 7, "c1"), link("cali2", 9, "c2")]
        );
    }
}
