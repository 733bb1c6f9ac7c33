mod algebra;
mod assign;
mod corrupt;
mod encoding;
pub(crate) mod host_reserved;
mod hostile;
mod inspect;
mod release;

use std::collections::BTreeMap;
use std::net::IpAddr;

use time::OffsetDateTime;
use time::macros::datetime;

use super::*;
use crate::ipam::{AffinityOwner, HandleId, Reservations};
use crate::net::Cidr;

const NOW: OffsetDateTime = datetime!(2026-08-22 01:02:03.1234 UTC);

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn host(name: &str) -> AffinityOwner {
    AffinityOwner::Host(name.into())
}

fn fresh() -> Block {
    Block::new(cidr("10.0.0.0/30"), &host("node1"), NOW).unwrap()
}

/// Assigns `n` addresses to `handle` with the attributes `{"pod": handle}`, and counts the write.
fn assign(block: &mut Block, n: usize, handle: &str) -> Vec<IpAddr> {
    let assigned = assign_leaving(block, n, handle, &[]);
    block.count_write();
    assigned
}

fn assign_leaving(block: &mut Block, n: usize, handle: &str, reserved: &[&str]) -> Vec<IpAddr> {
    let request = BlockRequest {
        handle: Some(&HandleId::new(handle)),
        attributes: &attributes(handle),
        requester: &host("node1"),
        check_affinity: false,
    };
    block
        .assign(
            n,
            &request,
            &Reservations::new(reserved.iter().map(|range| cidr(range))),
        )
        .unwrap()
}

fn attributes(pod: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("pod".to_owned(), pod.to_owned())])
}

fn release_request(address: &str) -> ReleaseRequest {
    ReleaseRequest {
        ip: ip(address),
        handle: None,
        sequence: None,
    }
}

/// Returns the handle of each attribute.
fn holders(block: &Block) -> Vec<&str> {
    block
        .attributes
        .iter()
        .map(|attribute| attribute.handle_id.as_deref().unwrap_or("-"))
        .collect()
}
