//! The plugin's side of a node: its calls on one of the two networks.

use std::path::Path;

use dataplane::{
    DataplaneError, DesiredInterface, EndpointPlan, HostLinkProof, PodNetwork, PriorInterface,
    Removal, SuspectInterface, TeardownTarget,
};
use integration_tests::namespaces::NETNS_DIR;

use super::changes::OtherPrograms;
use super::facts::Facts;
use super::operation::{Call, Change, IndexChoice, Prior};
use super::outcome::{self, Outcome};

/// An index that no interface has.
const NO_INDEX: u32 = 1 << 20;

pub(super) struct Node<N> {
    network: N,
    /// The indexes of host interfaces, in the order in which they were seen.
    indexes: Vec<u32>,
    /// The indexes that interfaces have now.
    present: Facts,
    suspects: Vec<SuspectInterface>,
}

impl<N: PodNetwork> Node<N> {
    pub(super) fn new(network: N) -> Self {
        Node {
            network,
            indexes: Vec::new(),
            present: Facts::default(),
            suspects: Vec::new(),
        }
    }

    /// Stores the indexes of interfaces after an operation.
    pub(super) fn learn(&mut self, facts: &Facts) {
        for index in facts.indexes.values() {
            if !self.indexes.contains(index) {
                self.indexes.push(*index);
            }
        }
        self.present = facts.clone();
    }

    /// Replaces the indexes of results by their places in the list of all indexes.
    pub(super) fn numbered(&self, mut outcomes: Vec<Outcome>) -> Vec<Outcome> {
        for outcome in &mut outcomes {
            outcome.index = outcome.index.map(|index| {
                let place = self.indexes.iter().position(|known| *known == index);
                place.map_or(NO_INDEX, |place| place as u32)
            });
        }
        outcomes
    }

    pub(super) fn run(&mut self, call: &Call, others: &mut impl OtherPrograms) -> Vec<Outcome> {
        match call {
            Call::Suspects { suspects, removes } => match self.network.suspect_interfaces(suspects)
            {
                Ok(found) => self.examine(found, *removes),
                Err(error) => vec![outcome::of_error(error)],
            },
            Call::RemoveEarlierSuspects => self.remove_suspects(),
            call => vec![self.run_one(call, others).unwrap_or_else(outcome::of_error)],
        }
    }

    fn run_one(
        &self,
        call: &Call,
        others: &mut impl OtherPrograms,
    ) -> Result<Outcome, DataplaneError> {
        let network = &self.network;
        let open = |pod: &str| network.open_netns(&Path::new(NETNS_DIR).join(pod));
        Ok(match call {
            Call::SetUp {
                pod,
                plan,
                prior,
                removes_path,
            } => {
                let netns = open(pod)?;
                assert!(network.can_enter(&netns));
                if *removes_path {
                    others.change(&Change::RemovePod(pod));
                }
                let plan = EndpointPlan {
                    prior: self.prior(*prior),
                    ..plan.clone()
                };
                outcome::of_pair(&plan, network.set_up(&plan, &netns)?)
            }
            Call::UndoSetUp { index, alias } => {
                network.undo_set_up(self.index(*index), alias)?;
                Outcome::new("set up undone")
            }
            Call::Verify { pod, plan } => outcome::of_verify(network.verify(plan, &open(pod)?)?),
            Call::IsAbsent {
                pod,
                host_ifname,
                container_ifname,
            } => {
                let is_absent = network.is_absent(host_ifname, container_ifname, &open(pod)?)?;
                Outcome::new("absence").with(is_absent)
            }
            Call::ExistingInterface {
                pod,
                host_ifname,
                container_ifname,
                alias,
                prior,
            } => {
                let desired = DesiredInterface {
                    host_ifname,
                    container_ifname,
                    alias,
                    prior: self.prior(*prior),
                };
                outcome::of_existing(network.existing_interface(desired, &open(pod)?)?)
            }
            Call::Remove { target, index } => {
                let proof = index.map(|index| HostLinkProof::Index(self.index(index)));
                let target = TeardownTarget {
                    proof: proof.unwrap_or(target.proof.clone()),
                    ..target.clone()
                };
                let removal = network.start_removal(target.clone())?;
                let unproven = removal.unproven().cloned();
                let removed = removal.finish()?;
                match unproven {
                    Some(found) => outcome::of_conflict("removal is unproven", found),
                    None => outcome::of_removed(&target, removed),
                }
            }
            Call::HasInterface {
                container,
                addresses,
            } => {
                let has_interface = network.has_interface(container, addresses.iter())?;
                Outcome::new("container's interface").with(has_interface)
            }
            Call::InterfaceAliases => Outcome::new("aliases").with(network.interface_aliases()?),
            Call::Suspects { .. } | Call::RemoveEarlierSuspects => {
                unreachable!("these calls have several results")
            }
        })
    }

    fn examine(&mut self, mut found: Vec<SuspectInterface>, removes: bool) -> Vec<Outcome> {
        let mut results = vec![
            outcome::of_suspects(&found),
            self.network
                .running_containers(&found)
                .map_or_else(outcome::of_error, outcome::of_running),
        ];
        found.sort_by(|a, b| a.ifname.cmp(&b.ifname));
        self.suspects = found;
        if removes {
            results.extend(self.remove_suspects());
        }
        results
    }

    fn remove_suspects(&mut self) -> Vec<Outcome> {
        let remove = |suspect| match self.network.remove_suspect(suspect) {
            Ok(()) => Outcome::new("suspect removed"),
            Err(error) => outcome::of_error(error),
        };
        std::mem::take(&mut self.suspects)
            .into_iter()
            .map(remove)
            .collect()
    }

    fn prior(&self, prior: Prior) -> PriorInterface {
        match prior {
            Prior::Unknown => PriorInterface::Unknown,
            Prior::Missing => PriorInterface::Missing,
            Prior::Present(index, is_proven) => PriorInterface::Present {
                index: self.index(index),
                is_proven,
            },
        }
    }

    fn index(&self, choice: IndexChoice) -> u32 {
        let found = match choice {
            IndexChoice::Of(name) => self.present.indexes.get(name),
            IndexChoice::Earlier(age) => self.indexes.iter().rev().nth(age),
        };
        found.copied().unwrap_or(NO_INDEX)
    }
}
