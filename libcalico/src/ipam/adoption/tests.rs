use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use time::OffsetDateTime;
use time::macros::datetime;

use super::*;
use crate::api::{IpPool, IpPoolSpec};
use crate::ipam::{AffinityOwner, Block, BlockRequest};
use crate::names::InterfaceAlias;
use crate::net::Cidr;

const NOW: OffsetDateTime = datetime!(2026-08-22 01:02:03 UTC);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

fn pod(name: &str) -> Claimant {
    Claimant::Pod {
        namespace: "ns".into(),
        name: name.into(),
    }
}

/// The objects of a cluster with the pool 10.65.0.0/16 in blocks of 64.
struct AdoptedCluster {
    users: BTreeMap<IpAddr, BTreeSet<Claimant>>,
    pools: Vec<IpPool>,
    ranges: BTreeSet<Cidr>,
    blocks: BTreeMap<Cidr, Block>,
    cooldown_seconds: i64,
}

impl AdoptedCluster {
    fn new() -> Self {
        let spec = IpPoolSpec {
            cidr: "10.65.0.0/16".into(),
            ..IpPoolSpec::default()
        };
        AdoptedCluster {
            users: BTreeMap::new(),
            pools: vec![IpPool::new("pool4", spec)],
            ranges: BTreeSet::new(),
            blocks: BTreeMap::new(),
            cooldown_seconds: 0,
        }
    }

    fn insert(&mut self, block: Block) {
        self.ranges.insert(block.cidr);
        self.blocks.insert(block.cidr, block);
    }

    fn plan(&self, claim: &Claim) -> Adoption {
        let AdoptedCluster {
            users,
            pools,
            ranges,
            blocks,
            cooldown_seconds,
        } = self;
        let inputs = AdoptionInputs {
            users,
            pools,
            ranges,
            blocks,
            cooldown_seconds: *cooldown_seconds,
            now: NOW,
        };
        plan_adoption(&inputs, claim)
    }

    #[track_caller]
    fn conflict(&self, claim: &Claim) -> String {
        match self.plan(claim) {
            Adoption::Conflict(reason) => reason.to_string(),
            other => panic!("{other:?}"),
        }
    }
}

fn claim(address: &str) -> Claim {
    Claim {
        address: ip(address),
        claimant: pod("web"),
        handle: Ok(HandleId::new("net.c1")),
    }
}

fn block(range: &str, taken: &[(&str, &str, &str)]) -> Block {
    let owner = AffinityOwner::Host("node1".into());
    let mut block = Block::new(cidr(range), &owner, NOW).unwrap();
    for (address, handle, pod) in taken {
        let attributes = [("namespace", "ns"), ("pod", *pod), ("node", "node1")];
        let attributes = attributes
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        let handle = HandleId::new(handle);
        let request = BlockRequest {
            handle: Some(&handle),
            attributes: &attributes,
            requester: &owner,
            check_affinity: false,
        };
        block.assign_address(ip(address), &request).unwrap();
    }
    block
}

#[test]
fn free_address_is_allocated_in_its_block_or_a_new_one() {
    let mut adopted = AdoptedCluster::new();
    let expected = |block: &str| Adoption::Allocate {
        handle: HandleId::new("net.c1"),
        block: cidr(block),
    };
    assert_eq!(adopted.plan(&claim("10.65.0.9")), expected("10.65.0.0/26"));
    adopted.insert(block("10.65.0.0/26", &[("10.65.0.8", "net.c8", "db")]));
    assert_eq!(adopted.plan(&claim("10.65.0.9")), expected("10.65.0.0/26"));
    adopted.pools[0].spec.disabled = true;
    assert_eq!(
        adopted.plan(&claim("10.65.1.9")),
        expected("10.65.1.0/26"),
        "the pool is disabled"
    );
    adopted.pools[0].spec.block_size = Some(28);
    assert_eq!(
        adopted.plan(&claim("10.65.0.9")),
        expected("10.65.0.0/26"),
        "the block has a former size"
    );
}

#[test]
fn address_of_two_pods_is_a_conflict() {
    let mut adopted = AdoptedCluster::new();
    adopted
        .users
        .insert(ip("10.65.0.9"), [pod("web"), pod("thief")].into());
    assert_eq!(
        adopted.conflict(&claim("10.65.0.9")),
        "pod ns/thief uses it too; delete one of the pods"
    );
    adopted.insert(block("10.65.0.0/26", &[("10.65.0.9", "net.c1", "web")]));
    assert!(
        adopted
            .conflict(&claim("10.65.0.9"))
            .starts_with("pod ns/thief"),
        "also if it is allocated"
    );
    adopted.users.insert(ip("10.65.0.9"), [pod("web")].into());
    assert_eq!(
        adopted.plan(&claim("10.65.0.9")),
        Adoption::Held {
            block: cidr("10.65.0.0/26")
        }
    );
}

#[test]
fn address_of_another_handle_names_its_holder() {
    let mut adopted = AdoptedCluster::new();
    adopted.insert(block(
        "10.65.0.0/26",
        &[
            ("10.65.0.9", "net.c8", "db"),
            ("10.65.0.10", "net.c0", "web"),
        ],
    ));
    let of_another = adopted.conflict(&claim("10.65.0.9"));
    assert!(
        of_another.starts_with("allocated to another owner: 10.65.0.9 (handle net.c8, node node1"),
        "{of_another}"
    );
    let of_other_container = adopted.conflict(&claim("10.65.0.10"));
    assert!(
        of_other_container.starts_with("allocated to another container of the pod: "),
        "{of_other_container}"
    );
}

#[test]
fn address_of_a_virtual_machine_is_held_only_by_its_recorded_pod() {
    let mut adopted = AdoptedCluster::new();
    adopted.insert(block(
        "10.65.0.0/26",
        &[
            ("10.65.0.9", "net.vmi.ns.vm", "web"),
            ("10.65.0.10", "net.vmi.ns.vm", "x"),
        ],
    ));
    let claim = |address: &str| Claim {
        handle: Ok(HandleId::new("net.vmi.ns.vm")),
        ..claim(address)
    };
    assert_eq!(
        adopted.plan(&claim("10.65.0.9")),
        Adoption::Held {
            block: cidr("10.65.0.0/26")
        }
    );
    assert!(
        adopted
            .conflict(&claim("10.65.0.10"))
            .starts_with("allocated to another owner")
    );
}

#[test]
fn cooling_address_names_the_end_of_its_cooldown() {
    let mut adopted = AdoptedCluster {
        cooldown_seconds: 300,
        ..AdoptedCluster::new()
    };
    let mut cooling = block("10.65.0.0/26", &[("10.65.0.9", "net.c8", "db")]);
    cooling.attributes[0].released_at = Some("2026-08-22T01:00:00Z".into());
    adopted.insert(cooling);
    assert_eq!(
        adopted.conflict(&claim("10.65.0.9")),
        "cooling down until 2026-08-22T01:05:00Z after a release; adopt it then"
    );
    adopted.cooldown_seconds = 60;
    assert!(
        matches!(adopted.plan(&claim("10.65.0.9")), Adoption::Allocate { .. }),
        "the cooldown has elapsed"
    );
}

#[test]
fn address_without_usable_pool_or_block_is_a_conflict() {
    let mut adopted = AdoptedCluster::new();
    assert_eq!(
        adopted.conflict(&claim("192.0.2.1")),
        "no IP pool contains it"
    );
    adopted.pools[0].spec.block_size = Some(8);
    assert_eq!(
        adopted.conflict(&claim("10.65.0.9")),
        "IP pool pool4: its blockSize 8 is outside 20..32"
    );
    adopted.pools[0].spec.block_size = None;
    adopted.ranges.insert(cidr("10.65.0.0/28"));
    let overlapping = "blocks of different sizes overlap there: 10.65.0.0/28";
    assert_eq!(adopted.conflict(&claim("10.65.0.20")), overlapping);
    assert!(
        adopted
            .conflict(&claim("10.65.0.9"))
            .starts_with("block 10.65.0.0/28 cannot be read")
    );
    adopted.ranges.insert(cidr("10.65.0.0/26"));
    assert!(
        adopted
            .conflict(&claim("10.65.0.9"))
            .ends_with("10.65.0.0/26 and 10.65.0.0/28")
    );
    let mut corrupt = block("10.65.1.0/26", &[]);
    corrupt.allocations.pop();
    adopted.insert(corrupt);
    assert!(
        adopted
            .conflict(&claim("10.65.1.9"))
            .starts_with("block 10.65.1.0/26 is corrupt")
    );
}

#[test]
fn unproven_owner_is_a_conflict() {
    let claim = Claim {
        handle: Err(Failure::new("no proof")),
        ..claim("10.65.0.9")
    };
    assert_eq!(AdoptedCluster::new().conflict(&claim), "no proof");
}

/// Alias, ready sandboxes, container of the endpoint, and the expected container or text.
type Case<'a> = (
    Option<&'a InterfaceAlias>,
    &'a [&'a str],
    Option<&'a str>,
    &'a str,
);

fn prove(
    alias: Option<&InterfaceAlias>,
    sandboxes: &[&str],
    endpoint: Option<&str>,
) -> Result<String, Failure> {
    let evidence = ContainerEvidence {
        interface: "cali1",
        expected: &InterfaceAlias::for_pod("net", "ns", "web", ""),
        alias: alias.map_or_else(
            || Statement::Unknown("no alias".into()),
            |alias| Statement::Known(alias.clone()),
        ),
        sandboxes: Statement::Known(sandboxes.iter().map(ToString::to_string).collect()),
        endpoint,
    };
    prove_container(&evidence)
}

#[test]
fn container_is_proven_by_the_alias_or_the_runtime() {
    let alias = InterfaceAlias::for_pod("net", "ns", "web", "c1");
    let long = "c".repeat(65);
    let digest = InterfaceAlias::for_pod("net", "ns", "web", &long);
    let cases: [Case<'_>; 6] = [
        (Some(&alias), &[], None, "c1"),
        (Some(&alias), &["c1"], None, "c1"),
        (Some(&alias), &["c1"], Some("c1"), "c1"),
        (None, &["c1"], None, "c1"),
        (Some(&digest), &[&*long], None, &*long),
        (Some(&digest), &[], Some(&*long), &*long),
    ];
    for (alias, sandboxes, endpoint, container) in cases {
        assert_eq!(prove(alias, sandboxes, endpoint), Ok(container.to_owned()));
    }
}

#[test]
fn contradicting_evidence_proves_no_container() {
    let alias = InterfaceAlias::for_pod("net", "ns", "web", "c1");
    let digest = InterfaceAlias::for_pod("net", "ns", "web", &"c".repeat(65));
    let cases: [Case<'_>; 6] = [
        (
            Some(&alias),
            &["c2"],
            None,
            "interface cali1 is of container c1, but the runtime runs container c2",
        ),
        (
            Some(&alias),
            &["c1", "c2"],
            None,
            "several ready sandboxes of the pod: c1, c2",
        ),
        (
            Some(&alias),
            &[],
            Some("c0"),
            "the WorkloadEndpoint names container c0, but container c1 runs",
        ),
        (
            Some(&digest),
            &[],
            None,
            "the container is unknown: the alias of interface cali1 has only a digest",
        ),
        (
            None,
            &[],
            None,
            "the container is unknown: no alias; the runtime has no ready sandbox",
        ),
        (None, &[], Some("c1"), "the container is unknown"),
    ];
    for (alias, sandboxes, endpoint, text) in cases {
        let error = prove(alias, sandboxes, endpoint).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
}

/// The names of both interfaces have the same hash.
#[test]
fn interface_of_a_pod_with_a_colliding_name_proves_no_container() {
    let others = [
        InterfaceAlias::for_pod("net", "ns", "p6680456", "c1"),
        InterfaceAlias::for_pod("other", "ns", "web", "c1"),
    ];
    for alias in others {
        assert_eq!(
            prove(Some(&alias), &["c1"], None),
            Err(foreign_interface("cali1"))
        );
    }
}
