//! Draws the operations of a sequence.

use std::net::IpAddr;

use dataplane::plan::{DEFAULT_IPV4_GATEWAY, default_routes};
use dataplane::{
    DeviceType, EndpointPlan, HostLinkProof, PriorInterface, SuspectContainer, TeardownTarget,
};
use fastrand::Rng;
use integration_tests::namespaces::NETNS_DIR;
use libcalico::names::InterfaceAlias;

use super::facts::{Facts, LinkFacts};
use super::operation::{Call, Change, IndexChoice, NewPair, Operation, Prior};

const PODS: [&str; 3] = ["pod0", "pod1", "pod2"];
const HOST_IFNAMES: [&str; 3] = ["cali0", "cali1", "cali2"];
const CONTAINERS: [&str; 4] = ["c0", "c1", "c2", "c3"];
const CONTAINER_IFNAMES: [&str; 2] = ["eth0", "net1"];
const IPV4: [&str; 4] = ["10.65.0.2", "10.65.0.3", "10.65.0.4", "10.65.0.5"];
const IPV6: [&str; 4] = ["fd00:65::2", "fd00:65::3", "fd00:65::4", "fd00:65::5"];

/// A source of operations. Each operation concerns one endpoint, and often another one in a part,
/// so that names and addresses collide.
pub(super) struct Draw {
    rng: Rng,
    last: Option<Operation>,
    /// The plans of the ADDs so far, with the pods.
    plans: Vec<(&'static str, EndpointPlan)>,
    /// The host interface that the operation concerns, if one is chosen that exists.
    found: Option<LinkFacts>,
}

impl Draw {
    pub(super) fn new(rng: Rng) -> Self {
        Draw {
            rng,
            last: None,
            plans: Vec::new(),
            found: None,
        }
    }

    /// Draws an operation on a node in this state.
    pub(super) fn operation(&mut self, facts: &Facts) -> Operation {
        let drawn = match &self.last {
            Some(last) if self.rng.u8(..) < 16 => last.clone(),
            _ => self.new_operation(facts),
        };
        self.last = Some(drawn.clone());
        drawn
    }

    fn new_operation(&mut self, facts: &Facts) -> Operation {
        let number = self.rng.usize(..PODS.len());
        self.found = facts.host_link(HOST_IFNAMES[number]).cloned();
        if !facts.has_pod(PODS[number]) && !self.rarely() {
            Operation::Change(Change::CreatePod(PODS[number]))
        } else if self.rng.u8(..) < 150 {
            Operation::Call(self.call(number))
        } else {
            Operation::Change(self.change(number))
        }
    }

    fn call(&mut self, number: usize) -> Call {
        match self.rng.u8(..20) {
            0..6 => self.set_up(number),
            18 if self.found.is_none() => self.set_up(number),
            7 => Call::UndoSetUp {
                index: self.index(number),
                alias: self.alias(number),
            },
            6 | 8 | 9 => self.verify(number),
            10 => Call::IsAbsent {
                pod: PODS[self.rng.usize(..PODS.len())],
                host_ifname: HOST_IFNAMES[number],
                container_ifname: self.container_ifname(),
            },
            11 | 12 => Call::ExistingInterface {
                pod: PODS[self.near(number)],
                host_ifname: HOST_IFNAMES[self.near(number)],
                container_ifname: self.container_ifname(),
                alias: self.alias(number),
                prior: self.prior(number),
            },
            13..16 => Call::Remove {
                target: self.target(number),
                index: self.rarely().then(|| self.index(number)),
            },
            16 | 17 => Call::Suspects {
                suspects: (0..self.rng.usize(1..3))
                    .map(|_| self.suspect(number))
                    .collect(),
                removes: self.rng.bool(),
            },
            18 => Call::HasInterface {
                container: self.container(number),
                addresses: self.addresses(number),
            },
            _ if self.rng.bool() => Call::InterfaceAliases,
            _ => Call::RemoveEarlierSuspects,
        }
    }

    fn set_up(&mut self, number: usize) -> Call {
        let (mut pod, mut plan) = (PODS[self.near(number)], self.plan(number));
        if self.rarely() {
            // A second interface of a pod.
            pod = PODS[self.rng.usize(..PODS.len())];
            plan.container_ifname = CONTAINER_IFNAMES[1].into();
        }
        self.plans.push((pod, plan.clone()));
        Call::SetUp {
            pod,
            plan,
            prior: self.prior(number),
            removes_path: self.rarely() && self.rng.bool(),
        }
    }

    fn verify(&mut self, number: usize) -> Call {
        let mut earlier = self.plans.iter().rev();
        let (pod, plan) = match earlier.find(|(_, plan)| plan.host_ifname == HOST_IFNAMES[number]) {
            Some(earlier) if self.rng.u8(..) < 225 => earlier.clone(),
            _ => (PODS[number], self.plan(number)),
        };
        let pod = match self.rarely() {
            true => PODS[self.rng.usize(..PODS.len())],
            false => pod,
        };
        Call::Verify { pod, plan }
    }

    fn change(&mut self, number: usize) -> Change {
        let pod = PODS[number];
        let host_ifname = HOST_IFNAMES[number];
        let container_ifname = self.container_ifname();
        match self.rng.u8(..26) {
            0 if self.rng.bool() => Change::RemovePod(pod),
            1..5 => Change::StartProcess(pod),
            5 => Change::StopProcesses(pod),
            6 | 7 => Change::RenameInPod {
                pod,
                from: container_ifname,
                to: self.container_ifname(),
            },
            8 | 9 => Change::SetUpInPod {
                pod,
                ifname: container_ifname,
                is_up: self.rng.bool(),
            },
            10 => Change::DeleteInPod {
                pod,
                ifname: container_ifname,
            },
            11..13 | 20..22 => Change::AddPair(self.pair(number)),
            13 if self.rng.bool() => Change::AddBridge {
                pod: Some(pod),
                name: container_ifname,
            },
            13 | 23 => Change::AddBridge {
                pod: None,
                name: host_ifname,
            },
            14 | 15 | 22 => Change::SetAlias {
                ifname: host_ifname,
                alias: self.rarely().then(|| self.alias(number)),
            },
            16 => Change::SetHostLinkUp {
                ifname: host_ifname,
                is_up: self.rng.bool(),
            },
            17 => Change::DeleteHostLink(host_ifname),
            18 => Change::AddRoute {
                address: self.address(number),
                ifname: host_ifname,
            },
            _ => Change::DeleteRoute {
                address: self.address(number),
                ifname: host_ifname,
            },
        }
    }

    /// Returns mostly the same number.
    fn near(&mut self, number: usize) -> usize {
        if self.rng.u8(..) < 225 {
            number
        } else {
            self.rng.usize(..PODS.len())
        }
    }

    fn rarely(&mut self) -> bool {
        self.rng.u8(..) < 40
    }

    fn container_ifname(&mut self) -> &'static str {
        CONTAINER_IFNAMES[usize::from(self.rarely())]
    }

    fn container(&mut self, number: usize) -> String {
        let found = self.found.as_ref().and_then(LinkFacts::alias);
        match found {
            Some(alias) if self.rng.u8(..) < 150 => alias.container().to_owned(),
            _ => CONTAINERS[self.near(number) + usize::from(self.rarely())].to_owned(),
        }
    }

    fn alias(&mut self, number: usize) -> InterfaceAlias {
        let found = self.found.as_ref().and_then(LinkFacts::alias);
        if let Some(alias) = found.filter(|_| self.rng.bool()) {
            return alias;
        }
        let container = self.container(number);
        match self.rng.u8(..8) {
            0 => InterfaceAlias::for_container(&container),
            _ => {
                let pod = PODS[self.near(number)];
                InterfaceAlias::for_pod("net", "ns", pod, &container)
            }
        }
    }

    fn address(&mut self, number: usize) -> IpAddr {
        let found = self.found.iter().flat_map(|link| &link.addresses);
        let found: Vec<IpAddr> = found.copied().collect();
        if let Some(address) = self.rng.choice(found).filter(|_| self.rng.bool()) {
            return address;
        }
        let number = self.near(number) + usize::from(self.rarely());
        let address = if self.rng.u8(..3) == 0 {
            IPV6[number]
        } else {
            IPV4[number]
        };
        address.parse().unwrap()
    }

    fn addresses(&mut self, number: usize) -> Vec<IpAddr> {
        (0..self.rng.usize(1..4))
            .map(|_| self.address(number))
            .collect()
    }

    fn index(&mut self, number: usize) -> IndexChoice {
        if self.rarely() {
            IndexChoice::Earlier(self.rng.usize(..3))
        } else {
            IndexChoice::Of(HOST_IFNAMES[self.near(number)])
        }
    }

    fn prior(&mut self, number: usize) -> Prior {
        match self.rng.u8(..6) {
            0 | 1 => Prior::Unknown,
            2 => Prior::Missing,
            _ => Prior::Present(self.index(number), self.rng.bool()),
        }
    }

    fn plan(&mut self, number: usize) -> EndpointPlan {
        let mut addresses = self.addresses(number);
        if let IpAddr::V4(ip) = addresses[0]
            && self.rarely()
        {
            addresses[0] = ip.to_ipv6_mapped().into();
        }
        if self.rng.u8(..) < 3 {
            addresses.clear();
        }
        EndpointPlan {
            host_ifname: HOST_IFNAMES[self.near(number)].into(),
            container_ifname: self.container_ifname().into(),
            alias: self.alias(number),
            prior: PriorInterface::Unknown,
            addresses,
            mtu: [0, 0, 1400][self.rng.usize(..3)],
            num_queues: 1,
            device: DeviceType::Veth,
            container_mac: self.rarely().then(|| "0a:58:0a:41:00:02".parse().unwrap()),
            routes: default_routes(),
            ipv4_gateway: DEFAULT_IPV4_GATEWAY,
            allow_ip_forwarding: false,
            host_routes: !self.rarely(),
            replaces_idle_routes: !self.rarely(),
            refuses_addresses_of_pods: self.rarely(),
            withholds_other_pods: self.rng.bool(),
        }
    }

    fn target(&mut self, number: usize) -> TeardownTarget {
        if let Some(link) = &self.found
            && link.alias().is_none()
            && self.rng.bool()
        {
            return TeardownTarget {
                netns: None,
                container_ifname: CONTAINER_IFNAMES[0].into(),
                host_ifname: HOST_IFNAMES[number].into(),
                container_id: Some(CONTAINERS[number].into()),
                proof: HostLinkProof::RouteTo(link.addresses.iter().copied().collect()),
            };
        }
        let netns = match self.rng.u8(..6) {
            0 | 1 => None,
            2 => Some(format!("{NETNS_DIR}/absent")),
            _ => Some(format!("{NETNS_DIR}/{}", PODS[self.near(number)])),
        };
        let proof = match self.rng.u8(..10) {
            0 | 1 => HostLinkProof::Name,
            2 => HostLinkProof::NameUnlessPeerInPod,
            3 => HostLinkProof::Absent,
            4 => HostLinkProof::OtherInterface,
            _ => HostLinkProof::RouteTo(self.addresses(number)),
        };
        TeardownTarget {
            netns: netns.map(Into::into),
            container_ifname: self.container_ifname().into(),
            host_ifname: HOST_IFNAMES[self.near(number)].into(),
            container_id: (!self.rarely()).then(|| self.container(number)),
            proof,
        }
    }

    fn suspect(&mut self, number: usize) -> SuspectContainer {
        let aliases = (0..self.rng.usize(..3)).map(|_| self.alias(number));
        let aliases = aliases.collect();
        let mut some_addresses = || match self.rng.bool() {
            true => self.addresses(number),
            false => Vec::new(),
        };
        let (allocated, listed) = (some_addresses(), some_addresses());
        SuspectContainer {
            container_id: self.container(number),
            has_valid_attachment: self.rarely(),
            may_have_other_network: self.rarely(),
            aliases,
            allocated,
            listed,
        }
    }

    fn pair(&mut self, number: usize) -> NewPair {
        let pod = (self.rng.u8(..8) > 0).then(|| PODS[self.near(number)]);
        let mut addresses = Vec::new();
        // An address of a pair on the host would be the host's own.
        if pod.is_some() {
            addresses.push(self.address(number));
        }
        NewPair {
            host_ifname: HOST_IFNAMES[number],
            has_mac_of_calico: !self.rarely(),
            alias: self.rarely().then(|| self.alias(number)),
            pod,
            container_ifname: self.container_ifname(),
            addresses,
            has_routes: !self.rarely(),
        }
    }
}
