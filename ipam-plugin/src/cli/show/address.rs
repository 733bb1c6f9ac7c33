//! Prints the owner of an address, and the time of its allocation.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use datastore::Datastore;
use libcalico::api::{IpPool, IpReservation, ObjectSelect, WorkloadEndpoint};
use libcalico::ipam::{Block, IpamConfig, IpamConfigKey, Reservations, any_pool_of};
use libcalico::net::Cidr;
use libcalico::store::{Entry, RawEntry, ReadBatch, Store, decode_entry};
use serde::Serialize;

use crate::cli::app::App;
use crate::cli::error::CliError;
use crate::cli::{cluster_read, documents, endpoints};
use allocation::reads::blocks_of;

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Address {
    address: IpAddr,
    state: State,
    #[serde(skip_serializing_if = "Option::is_none")]
    pool: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    block: Option<Cidr>,
    /// The block's owner, such as `host:NODE`.
    #[serde(skip_serializing_if = "Option::is_none")]
    affinity: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    handle: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    attributes: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    alternate_attributes: BTreeMap<String, String>,
    /// Time of the allocation, or of the release if the address is cooling down.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence_number: Option<u64>,
    endpoints: Vec<String>,
    /// Cooldown of released addresses, in seconds.
    #[serde(skip)]
    cooldown: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum State {
    InUse,
    /// Cooling down.
    Resting,
    /// An IPReservation excludes the address from automatic assignment.
    Reserved,
    Free,
    NotInPool,
}

pub(super) async fn show(ip: IpAddr, app: &mut App<'_>) -> Result<(), CliError> {
    let progress = app.progress("looking for the address");
    let address = look_up(app.store, ip).await?;
    drop(progress);
    if documents::print_document(app.format, app.out, &address)? {
        Ok(())
    } else {
        address.print(app)
    }
}

async fn look_up(store: &Datastore, ip: IpAddr) -> Result<Address, CliError> {
    let mut batch = ReadBatch::new();
    let pools = batch.list::<IpPool>(&ObjectSelect::default());
    let reservations = batch.list::<IpReservation>(&ObjectSelect::default());
    let config = batch.get::<IpamConfig>(&IpamConfigKey);
    let answers = store.read(&batch).await?;
    let pools: Vec<IpPool> = answers
        .list(&pools)
        .into_iter()
        .map(|entry| entry.value)
        .collect();
    let reservations: Vec<IpReservation> = answers
        .list(&reservations)
        .into_iter()
        .map(|entry| entry.value)
        .collect();
    let (reservations, _) = Reservations::of(&reservations);
    let cooldown = answers
        .get(&config)?
        .map_or(0, |entry| entry.value.ip_cooldown_seconds);

    let pool = any_pool_of(&pools, ip);
    let block = blocks_of(store, &pools, &[ip], BTreeSet::new())
        .await?
        .pop()
        .map(|entry| entry.value);
    let mut endpoints = Vec::new();
    let mut examine = |pair: &RawEntry| {
        let Ok(Entry {
            value: endpoint, ..
        }) = decode_entry::<WorkloadEndpoint>(pair)
        else {
            return;
        };
        if cluster_read::audited_endpoint(&endpoint)
            .addresses
            .contains(&ip)
        {
            endpoints.push(endpoint_name(&endpoint));
        }
    };
    store
        .for_each_object::<WorkloadEndpoint>(&ObjectSelect::default(), &mut examine)
        .await?;
    let mut address = Address {
        address: ip,
        state: match &pool {
            None => State::NotInPool,
            Some(_) if reservations.contains(ip) => State::Reserved,
            Some(_) => State::Free,
        },
        pool: pool.map(|pool| pool.name),
        block: block.as_ref().map(|block| block.cidr),
        affinity: block.as_ref().and_then(|block| block.affinity.clone()),
        handle: None,
        attributes: BTreeMap::new(),
        alternate_attributes: BTreeMap::new(),
        since: None,
        sequence_number: None,
        endpoints,
        cooldown,
    };
    if let Some(block) = &block {
        address.fill_from(block);
    }
    Ok(address)
}

fn endpoint_name(endpoint: &WorkloadEndpoint) -> String {
    let (namespace, workload) = (&endpoint.metadata.namespace, endpoints::workload(endpoint));
    format!("{namespace}/{workload} on node {}", endpoint.spec.node)
}

impl Address {
    /// Copies the block's data on the address, if it is allocated.
    fn fill_from(&mut self, block: &Block) {
        let Some(allocation) = block.allocation(self.address) else {
            return;
        };
        self.sequence_number = allocation.sequence;
        let Some(attribute) = allocation.attribute else {
            self.state = State::InUse;
            return;
        };
        if let Some(released) = &attribute.released_at {
            (self.state, self.since) = (State::Resting, Some(released.clone()));
            return;
        }
        self.state = State::InUse;
        self.handle = allocation.handle().map(|handle| handle.to_string());
        self.since = attribute.active_owner.get("timestamp").cloned();
        self.attributes = attribute.active_owner.clone();
        self.alternate_attributes = attribute.alternate_owner.clone();
    }

    /// The text begins like that of `calicoctl ipam show --ip` (INST-123).
    fn print(&self, app: &mut App<'_>) -> Result<(), CliError> {
        let ip = self.address;
        match self.state {
            State::InUse => app.print_line(format_args!("IP {ip} is in use"))?,
            State::Resting => {
                let (since, cooldown) = (
                    self.since.as_deref().unwrap_or("an unknown time"),
                    self.cooldown,
                );
                app.print_line(format_args!(
                    "{ip} is not assigned: it was released at {since}"
                ))?;
                app.print_line(format_args!(
                    "  and cools down for {cooldown} seconds before it is assigned again"
                ))?;
            }
            State::Reserved => app.print_line(format_args!(
                "{ip} is not assigned: an IPReservation reserves it"
            ))?,
            State::Free => app.print_line(format_args!("{ip} is not assigned"))?,
            State::NotInPool => {
                app.print_line(format_args!("{ip} is not assigned: it is in no pool"))?
            }
        }
        if self.state == State::InUse {
            self.print_owner(app)?;
        }
        let owner = self.affinity.as_deref().unwrap_or("no owner");
        if let Some(block) = self.block {
            app.print_line(format_args!("Block: {block} of {owner}"))?;
        }
        if let Some(pool) = &self.pool {
            app.print_line(format_args!("Pool: {pool}"))?;
        }
        for endpoint in &self.endpoints {
            app.print_line(format_args!("Endpoint: {endpoint}"))?;
        }
        Ok(())
    }

    fn print_owner(&self, app: &mut App<'_>) -> Result<(), CliError> {
        app.print_line(format_args!(
            "Handle ID: {}",
            self.handle.as_deref().unwrap_or("<none>")
        ))?;
        if let Some(since) = &self.since {
            app.print_line(format_args!("Since: {since}"))?;
        }
        if self.attributes.is_empty() {
            app.print_line("No Active Owner attributes defined")?;
        }
        for (title, attributes) in [
            ("Active Owner Attributes:", &self.attributes),
            ("Alternate Owner Attributes:", &self.alternate_attributes),
        ] {
            if !attributes.is_empty() {
                app.print_line(title)?;
            }
            for (key, value) in attributes {
                app.print_line(format_args!("  {key}: {value}"))?;
            }
        }
        Ok(())
    }
}
