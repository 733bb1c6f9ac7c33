//! Tests of each behavior of the server, in both API groups.

mod custom;
mod pods;
mod reads;

use libcalico::ipam::{AffinityKey, AffinityOwner, AffinityState, Block, BlockAffinity};
use libcalico::kubernetes::{ApiGroup, Location};
use libcalico::net::Cidr;
use libcalico::store::{Entry, Kind, StoreError, Write};
use serde_json::Value;
use time::OffsetDateTime;

use super::ApiServer;

const GROUPS: [ApiGroup; 2] = [ApiGroup::CrdV1, ApiGroup::V3];

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

fn host(node: &str) -> AffinityOwner {
    AffinityOwner::Host(node.into())
}

fn block(range: &str, node: &str) -> Block {
    Block::new(cidr(range), &host(node), OffsetDateTime::UNIX_EPOCH).unwrap()
}

fn create_block(server: &mut ApiServer, range: &str) -> Entry<Block> {
    let write = Write::create::<Block>(&cidr(range), &block(range, "n1")).unwrap();
    server.apply(&write).unwrap();
    found(server, &cidr(range))
}

fn create_affinity(server: &mut ApiServer, node: &str, range: &str) {
    let key = AffinityKey {
        owner: host(node),
        cidr: cidr(range),
    };
    let affinity = BlockAffinity {
        state: AffinityState::Confirmed,
        ..BlockAffinity::default()
    };
    server
        .apply(&Write::create::<BlockAffinity>(&key, &affinity).unwrap())
        .unwrap();
}

/// Returns an object that must exist.
fn found<K: Kind>(server: &ApiServer, key: &K::Key) -> Entry<K> {
    server.get::<K>(key).unwrap().unwrap()
}

fn at(server: &ApiServer, kind: &str, name: &str) -> Location {
    Location::global(server.resource(kind).unwrap(), name)
}

/// Changes a field of a stored object, as another program does.
fn edit(server: &mut ApiServer, location: &Location, change: impl FnOnce(&mut Value)) {
    let mut object = server.object(location).unwrap().clone();
    change(&mut object);
    server.replace_object(location, object).unwrap();
}

/// Returns the variant of an error.
fn kind_of<T: std::fmt::Debug>(outcome: Result<T, StoreError>) -> &'static str {
    match outcome.unwrap_err() {
        StoreError::NotFound { .. } => "NotFound",
        StoreError::AlreadyExists { .. } => "AlreadyExists",
        StoreError::Conflict { .. } => "Conflict",
        StoreError::Forbidden { .. } => "Forbidden",
        StoreError::Other(_) => "Other",
        error => panic!("{error:?}"),
    }
}
