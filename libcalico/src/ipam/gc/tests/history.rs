//! Random histories of a cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;

use super::super::*;
use super::cluster::{Cluster, GRACE, QUEUES};
use crate::ipam::{Block, EndedPod, OwnerSlot};

#[derive(Debug, Clone)]
enum Action {
    Node(u8, bool),
    Claim(u8, u8),
    Disclaim(u8),
    Schedule(u8, u8),
    Add(u8, bool),
    Report(u8),
    End(u8, bool),
    Delete(u8, bool),
    Tunnel(u8),
    SetVmi(u8, bool),
    RunMachine(u8, u8, bool),
    Service(u8, bool),
    Anonymous(u8),
    Wait(u16),
    Deliver(u8, u8),
    Relist(u8),
    Everything,
    Pass(u8),
    /// Decides about suspects, and releases them only in a later action.
    Judge(u8),
    Apply,
}

const BLOCKS: [&str; 6] = [
    "10.0.0.0/29",
    "10.0.0.8/29",
    "10.0.1.0/30",
    "10.9.0.0/29",
    "fd00::/126",
    "fd00::4/126",
];

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let node = 0..3u8;
    let pod = 0..5u8;
    let action = prop_oneof![
        2 => (node.clone(), any::<bool>()).prop_map(|(n, b)| Action::Node(n, b)),
        3 => (0..6u8, node.clone()).prop_map(|(b, n)| Action::Claim(b, n)),
        1 => (0..6u8).prop_map(Action::Disclaim),
        4 => (pod.clone(), node.clone()).prop_map(|(p, n)| Action::Schedule(p, n)),
        6 => (pod.clone(), any::<bool>()).prop_map(|(p, b)| Action::Add(p, b)),
        5 => pod.clone().prop_map(Action::Report),
        1 => (pod.clone(), any::<bool>()).prop_map(|(p, b)| Action::End(p, b)),
        3 => (pod, any::<bool>()).prop_map(|(p, b)| Action::Delete(p, b)),
        1 => node.clone().prop_map(Action::Tunnel),
        2 => (0..2u8, any::<bool>()).prop_map(|(m, b)| Action::SetVmi(m, b)),
        2 => (0..2u8, node.clone(), any::<bool>())
            .prop_map(|(m, n, b)| Action::RunMachine(m, n, b)),
        1 => (0..2u8, any::<bool>()).prop_map(|(s, b)| Action::Service(s, b)),
        1 => node.prop_map(Action::Anonymous),
        4 => (0..1200u16).prop_map(Action::Wait),
        12 => (0..5u8, 1..6u8).prop_map(|(q, n)| Action::Deliver(q, n)),
        1 => (0..5u8).prop_map(Action::Relist),
        1 => Just(Action::Everything),
        4 => any::<u8>().prop_map(Action::Pass),
        2 => any::<u8>().prop_map(Action::Judge),
        2 => Just(Action::Apply),
    ];
    prop::collection::vec(action, 1..120)
}

struct History {
    cluster: Cluster,
    pending: Option<Plan>,
}

impl History {
    fn act(&mut self, action: &Action) {
        let cluster = &mut self.cluster;
        let node = |n: &u8| format!("n{n}");
        let pod = |n: &u8| format!("p{n}");
        let vmi = |n: &u8| format!("vm{n}");
        match action {
            Action::Node(n, exists) => cluster.node(&node(n), *exists),
            Action::Claim(b, n) => cluster.claim(BLOCKS[usize::from(*b)], &node(n)),
            Action::Disclaim(b) => cluster.clear_affinity(BLOCKS[usize::from(*b)]),
            Action::Schedule(p, n) => cluster.schedule(&pod(p), &node(n)),
            Action::Add(p, dual) => _ = cluster.add(&pod(p), *dual),
            Action::Report(p) => cluster.report(&pod(p)),
            Action::End(p, evicted) => {
                cluster.end(
                    &pod(p),
                    if *evicted {
                        EndedPod::Evicted
                    } else {
                        EndedPod::Finished
                    },
                );
            }
            Action::Delete(p, del) => cluster.delete(&pod(p), *del),
            // The tunnel uses the old allocation again, so the write of a pending plan would not
            // detect it.
            Action::Tunnel(n) => {
                cluster.tunnel(&node(n));
                self.pending = None;
            }
            Action::SetVmi(m, exists) => cluster.set_vmi(&vmi(m), *exists),
            Action::RunMachine(m, n, alternate) => {
                let slot = if *alternate {
                    OwnerSlot::Alternate
                } else {
                    OwnerSlot::Active
                };
                cluster.run_vmi(&vmi(m), &node(n), slot);
            }
            // The old allocation names an existing Service again, which the write of a pending plan
            // would not detect.
            Action::Service(s, exists) => {
                cluster.service(&format!("s{s}"), *exists);
                if *exists {
                    self.pending = None;
                }
            }
            Action::Anonymous(n) => cluster.allocate_without_owner(&node(n)),
            Action::Wait(seconds) => cluster.now += Duration::from_secs(u64::from(*seconds)),
            Action::Deliver(q, n) => cluster.deliver(QUEUES[usize::from(*q)], usize::from(*n)),
            Action::Relist(q) => cluster.relist(QUEUES[usize::from(*q)]),
            Action::Everything => _ = cluster.index.examine(cluster.now, Scope::Everything),
            Action::Pass(fails) => {
                let plan = cluster.decide(|n| fails & (1 << (n % 8)) != 0 && fails % 3 == 0);
                cluster.apply(&plan);
                cluster.run_rest_of_pass();
            }
            Action::Judge(fails) => {
                self.pending =
                    Some(cluster.decide(|n| fails & (1 << (n % 8)) != 0 && fails % 3 == 0));
            }
            Action::Apply => {
                if let Some(plan) = self.pending.take() {
                    cluster.apply(&plan);
                }
            }
        }
    }
}

/// Returns the state of the index, without the parts that depend on the times of the events.
fn comparable_state(index: &Index) -> impl PartialEq + std::fmt::Debug + use<> {
    let samples: BTreeSet<String> = index
        .samples()
        .map(|sample| {
            format!(
                "{:?}",
                Sample {
                    candidates: 0,
                    ..sample
                }
            )
        })
        .collect();
    let nodes: BTreeSet<String> = index.calico_nodes().map(str::to_owned).collect();
    let size = index.size();
    (
        samples,
        nodes,
        size.addresses,
        size.blocks,
        size.owners,
        index.tracked_addresses(),
    )
}

type Attributes = BTreeMap<String, String>;

/// Returns the active and alternate owners that allocations name.
fn owners(cluster: &Cluster) -> impl Iterator<Item = &Attributes> {
    let held = cluster.blocks.values().flat_map(Block::allocated);
    held.filter_map(|held| held.attribute)
        .flat_map(|attribute| [&attribute.active_owner, &attribute.alternate_owner])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn history_of_events_releases_every_leak_and_no_address_in_use(
        actions in actions(),
        cooldown in prop_oneof![Just(0), Just(30)],
    ) {
        let mut history = History {
            cluster: Cluster::new(cooldown),
            pending: None,
        };
        for action in &actions {
            history.act(action);
            history.cluster.check();
        }
        let mut cluster = history.cluster;

        // From here on, the cluster is quiet.
        let pods: Vec<String> = cluster.pods.keys().cloned().collect();
        for pod in &pods {
            cluster.report(pod);
        }
        cluster.deliver_all();
        cluster.check();
        let rebuilt_index = cluster.rebuilt_index();
        rebuilt_index.verify().unwrap();
        let state = format!("{:?}", comparable_state(&cluster.index));
        prop_assert_eq!(state, format!("{:?}", comparable_state(&rebuilt_index)));

        cluster.pass();
        cluster.deliver_all();
        cluster.now += GRACE + Duration::from_secs(300);
        for _ in 0..3 {
            cluster.now += Duration::from_secs(300);
            cluster.pass();
            cluster.deliver_all();
            cluster.check();
        }
        let silent: Vec<&String> = cluster
            .pods
            .iter()
            .filter(|(_, pod)| !pod.reported)
            .map(|(name, _)| name)
            .collect();
        for address in cluster.leaked() {
            let block = cluster
                .blocks
                .values()
                .find(|block| block.cidr.contains(address))
                .unwrap();
            let held = block.allocation(address).unwrap();
            let attribute = |key: &str| held.attributes().and_then(|attribute| attribute.get(key));
            let is_without_owner = attribute("pod").is_none() && attribute("type").is_none();
            let is_of_silent_pod = attribute("pod").is_some_and(|pod| silent.contains(&pod));
            // A stopped virtual machine keeps its address.
            let is_of_existing_vmi = held.handle().is_some_and(|handle| {
                handle
                    .as_str()
                    .strip_prefix("net.vmi.ns.")
                    .is_some_and(|name| cluster.vmis.contains_key(name))
            });
            // A deleted node keeps its tunnel address while another kind of address is left on it.
            let pinned = |node: &String| {
                let on_node = |owner: &Attributes| {
                    owner.get("node") == Some(node) && !owner.contains_key("type")
                };
                cluster.nodes.contains(node) || owners(&cluster).any(on_node)
            };
            let tunnel = attribute("type").is_some_and(|kind| kind == "ipipTunnelAddress");
            let tunnel = tunnel && attribute("node").is_some_and(pinned);
            let is_expected = is_without_owner || is_of_silent_pod || is_of_existing_vmi || tunnel;
            prop_assert!(is_expected, "{address} is left: {held:?}");
        }
        for block in cluster.blocks.values() {
            let owner = block
                .owner()
                .filter(|owner| !cluster.nodes.contains(owner.name()));
            if let Some(owner) = owner {
                let named = Some(owner.name());
                let names_node =
                    |attributes: &Attributes| attributes.get("node").map(String::as_str) == named;
                let named = owners(&cluster).any(names_node);
                prop_assert!(
                    !block.is_empty() || named,
                    "{} is left to {owner}",
                    block.cidr
                );
            }
        }
        let now = cluster.now;
        let changes = cluster.index.examine(now, Scope::Everything);
        prop_assert!(changes.is_empty(), "{changes:?}");
        prop_assert_eq!(cluster.index.leaks().1, 0);
    }
}
