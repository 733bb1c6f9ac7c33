//! Where addresses come from: `calico-ipam` in process, by the same code as its own binary, or a foreign plugin by exec
//! (design decision 1).

mod another;
mod child;
mod delegate;
pub mod pod_cidr;
mod requested;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam_plugin::ahead;
use ipam_plugin::clock::SystemClock;
use ipam_plugin::cni::{self, IpamCall, Leaked};
use ipam_plugin::error::IpamError;
use ipam_plugin::exhausted::Releasing;
use ipam_plugin::journal::Debt;
use ipam_plugin::kubevirt;
use ipam_plugin::lock::HostLock;
use ipam_plugin::prelude::Prelude;
use ipam_plugin::release::{Leaving, Listings, ReleasePrelude, Turn};
use libcalico::api::WorkloadEndpoint;
use libcalico::conversion::{ContainerFacts, EndpointFacts, Orchestrator};
use libcalico::ipam::{Block, HandleId, ReleaseRequest};
use libcalico::store::{ReadBatch, Store};
use netconf::args::for_delegate;
use netconf::{CniError, CniResult, Code, Version};

pub use another::{choose_another, pass_over, release_others};
pub use delegate::Delegate;
use pod_cidr::Subnets;
pub use requested::Outgoing;

use crate::annotations::Addresses;
use crate::attach::host_link_of;
use crate::dataplane::BusyRoute;
use crate::endpoint::EndpointsOf;
use crate::session::{Session, store_error};

/// Addresses given to this container by this ADD.
#[derive(Debug)]
pub struct Lease {
    /// What IPAM answered.
    pub result: CniResult,
    /// The addresses, in its order.
    pub addresses: Vec<IpAddr>,
    /// Whether IPAM keeps them for the container: not those that a pod brings along.
    pub is_kept: bool,
    /// The call by which `calico-ipam` chose them; `None` where they were asked for, are a virtual machine's, or come
    /// from elsewhere.
    pub chooser: Option<Box<IpamCall>>,
    /// Routes to addresses that this ADD was given and cannot use. The container holds the addresses until the ADD is
    /// over.
    pub busy: Vec<BusyRoute>,
    /// Addresses of the pod's earlier sandbox that it does not ask for any more.
    pub outgoing: Option<Outgoing>,
    /// The attributes of the owner whose place the pod took at its virtual machine's addresses; empty without one.
    pub replaced: BTreeMap<String, String>,
}

/// `calico-ipam` in process; nothing of it when a foreign plugin keeps the addresses.
#[derive(Debug, Default)]
pub struct Allocator {
    /// What it is asked for.
    pub call: Option<IpamCall>,
    /// The node's lock, if it is held already.
    pub lock: Option<HostLock>,
}

/// Why a release did not happen.
#[derive(Debug)]
pub enum ReleaseError {
    /// The datastore is out of reach or refuses this process, or an endpoint does not give the addresses up: the debt
    /// can be noted.
    Postponed(CniError),
    /// It answered, or a foreign plugin did, and said no.
    Refused(CniError),
}

impl ReleaseError {
    /// Tells the two apart.
    pub fn of(error: IpamError) -> Self {
        let told = cni::cni_error(&error);
        match error {
            IpamError::Store(cause) if cause.is_postponable() => ReleaseError::Postponed(told),
            IpamError::StillListed { .. } => ReleaseError::Postponed(told),
            _ => ReleaseError::Refused(told),
        }
    }
}

const READ_BLOCKS: &str = "read the address blocks";

fn is_calico(session: &Session) -> bool {
    session.call.conf.ipam.is_calico()
}

/// The call of `calico-ipam` in process; `None` when a foreign plugin keeps the addresses.
pub fn call_of(session: &Session) -> Option<IpamCall> {
    is_calico(session)
        .then(|| IpamCall { machine: session.machine.clone(), ..IpamCall::of(&session.call, &session.facts.node) })
}

/// The handles that DEL looks at: the container's, and the one of releases before v3 (IPAM-23). None when a foreign
/// plugin keeps the addresses.
pub fn handles_of(session: &Session) -> Vec<HandleId> {
    call_of(session).map(|call| call.handles()).unwrap_or_default()
}

/// Those of them that DEL reads first.
pub fn handles_to_read(session: &Session) -> Vec<HandleId> {
    call_of(session).map(|call| call.handles_to_read(&session.store)).unwrap_or_default()
}

/// Gets addresses. Nothing stays allocated when it fails. `before` is the endpoint that the container or pod had, as
/// far as is known.
pub async fn assign(
    session: &Session,
    Allocator { call, mut lock }: Allocator,
    mut prelude: Option<Prelude>,
    before: Option<&WorkloadEndpoint>,
    wanted: &Addresses,
) -> Result<Lease, CniError> {
    if !matches!(wanted, Addresses::Allocated) {
        Box::pin(forget_ahead(session, prelude.as_mut())).await;
        // Each address that was asked for takes it in its turn.
        lock = None;
    }
    let result = match (wanted, call, prelude) {
        (Addresses::Fixed(addresses), ..) => {
            return Ok(Lease { is_kept: false, ..Lease::of(requested::result(addresses)) });
        }
        (Addresses::Requested(addresses), Some(call), Some(prelude)) => {
            return Box::pin(requested::assign(session, call, prelude, before, addresses)).await;
        }
        (_, Some(call), Some(prelude)) => {
            let given = cni::add(&session.store, &SystemClock::start(), &call, prelude, lock).await?;
            let result = with_addresses(given.result)?;
            let is_chosen = call.machine.is_none() && call.ip.is_none();
            let chooser = is_chosen.then(|| Box::new(call));
            return Ok(Lease { chooser, replaced: given.replaced, ..Lease::of(result) });
        }
        _ => add_foreign(session, before.is_none())?,
    };
    let lease = Lease::of(result);
    let plugin = &session.call.conf.ipam.ipam_type;
    tracing::info!(addresses = ?lease.addresses, plugin, "the IPAM plugin assigned addresses");
    Ok(lease)
}

impl Lease {
    fn of(result: CniResult) -> Self {
        let addresses = result.ips.iter().map(|ip| ip.address.addr()).collect();
        Lease {
            result,
            addresses,
            is_kept: true,
            chooser: None,
            busy: Vec::new(),
            outgoing: None,
            replaced: BTreeMap::new(),
        }
    }
}

/// Takes back what was done ahead of an allocation that does not come about.
pub async fn forget_ahead(session: &Session, prelude: Option<&mut Prelude>) {
    if let (Some(call), Some(prelude)) = (call_of(session), prelude) {
        ahead::forget(&session.store, &SystemClock::start(), &call, prelude).await;
    }
}

/// Gives back exactly what a failed ADD was given: what the container held before stays. The endpoint gives it up
/// first.
pub async fn give_back(session: &Session, lease: &Lease) -> Result<(), CniError> {
    let endpoints = EndpointsOf::new(&session.store, session.is_on_kubernetes(), session.facts.clone());
    let call = call_of(session);
    // What is held for a virtual machine may be listed by an endpoint of it that is in use.
    let is_leaving = |call: &&IpamCall| lease.is_kept && call.machine.is_none();
    // Another plugin may have given a later sandbox of the pod the same address again.
    let handle = call.as_ref().filter(is_leaving).map(IpamCall::handle);
    let leaving_by = |handle: HandleId| {
        let leaving = lease.held().map(move |ip| Leaving { ip, pod: None, handle: Some(handle.clone()), block: None });
        leaving.collect::<Vec<_>>()
    };
    let leaving = handle.map(leaving_by).unwrap_or_default();
    endpoints.unlist(&leaving).await.map_err(|error| cni::cni_error(&error))?;
    if !lease.is_kept {
        return Ok(());
    }
    let Some(call) = call else { return release_foreign(session) };
    let handle = call.handle();
    if let Some(machine) = &call.machine {
        // The machine keeps them; the pod does not.
        let clock = SystemClock::start();
        let left = Box::pin(kubevirt::give_back(&session.store, &clock, &handle, machine, &lease.replaced)).await;
        return left.map_err(|error| cni::cni_error(&error));
    }
    let _releasing = call.releasing();
    let requests: Vec<_> =
        lease.held().map(|ip| ReleaseRequest { ip, handle: Some(handle.clone()), sequence: None }).collect();
    let clock = SystemClock::start();
    let released = ipam_plugin::release_addresses::release_addresses(&session.store, &clock, &requests).await;
    let released = released.map_err(|error| cni::cni_error(&error))?.released;
    tracing::info!(addresses = ?released, %handle, "released addresses of the failed ADD");
    Ok(())
}

/// DEL: releases everything the container holds, once its endpoints gave it up. Nothing held is success.
pub async fn release<L: Listings>(
    session: &Session,
    prelude: Option<ReleasePrelude>,
    endpoints: &L,
) -> Result<(), ReleaseError> {
    let (Some(call), Some(prelude)) = (call_of(session), prelude) else {
        // The journal notes no addresses of a foreign plugin: the runtime has to come again.
        endpoints.unlist(&[]).await.map_err(|error| ReleaseError::Refused(cni::cni_error(&error)))?;
        return release_foreign(session).map_err(ReleaseError::Refused);
    };
    let released = cni::release_call(&session.store, &SystemClock::start(), &call, prelude, endpoints).await;
    released.map_err(ReleaseError::of)
}

/// Releases what the container of a journal's entry holds, once its endpoints gave it up.
pub async fn release_owed<S: Store, L: Listings>(store: &S, owed: &Debt, endpoints: &L) -> Result<(), CniError> {
    // A foreign plugin keeps the addresses.
    if owed.handles.is_empty() {
        return Ok(());
    }
    let old = owed.old_handle();
    let handles: Vec<_> = [owed.own_handle()].into_iter().chain(old.iter().map(|old| old.id().clone())).collect();
    let prelude =
        ReleasePrelude::read(store, &handles).await.map_err(|error| store_error("read the handles", &error))?;
    if prelude.is_empty() {
        return Ok(());
    }
    let _releasing = Releasing::here();
    let (clock, mut turn) = (SystemClock::start(), Turn::default());
    let (old, node) = (old.as_ref(), owed.node.as_str());
    let released = cni::release_handles(store, &clock, prelude, old, node, endpoints, &mut turn).await;
    released.map(drop).map_err(|error| cni::cni_error(&error))
}

/// CHECK of the addresses; one text per difference.
pub async fn check(session: &Session, recorded: &[IpAddr]) -> Result<Vec<String>, CniError> {
    if let Some(call) = call_of(session) {
        return cni::differences(&session.store, &call, recorded)
            .await
            .map_err(|error| store_error(READ_BLOCKS, &error));
    }
    match call_foreign(session, "CHECK") {
        Ok(_) => Ok(Vec::new()),
        Err(error) => Ok(vec![format!("IPAM plugin {}: {error}", session.call.conf.ipam.ipam_type)]),
    }
}

/// What of an endpoint's addresses the container does not hold any more, one text each. A foreign plugin is not asked:
/// many know no CHECK.
pub async fn lost_addresses(session: &Session, endpoint: &WorkloadEndpoint) -> Result<Vec<String>, CniError> {
    let Some(mut call) = call_of(session) else { return Ok(Vec::new()) };
    // They were given in the first network, and are held by the handle of that one.
    if let Some(first) = endpoint.spec.profiles.first() {
        call.network.clone_from(first);
    }
    let (_, addresses) = host_link_of(&endpoint.spec);
    cni::differences(&session.store, &call, &addresses).await.map_err(|error| store_error(READ_BLOCKS, &error))
}

/// STATUS: whether addresses can be had, by what an ADD reads first, or by asking the foreign plugin.
pub fn status(session: &Session, call: Option<&IpamCall>, prelude: Option<&Prelude>) -> Result<(), CniError> {
    if let (Some(call), Some(prelude)) = (call, prelude) {
        return cni::status_of(call, prelude);
    }
    let delegate = foreign(session)?.within(crate::status::DEADLINE);
    if session.call.version < Version::V1_1_0 {
        return Ok(());
    }
    match delegate.call("STATUS", &for_delegate(&session.call.raw_args), &Subnets::any().fill_in(&session.call)?) {
        Err(error) if !is_too_old(&error) => Err(error),
        _ => Ok(()),
    }
}

/// GC: the addresses on this node of containers that are not in `valid`; none when a foreign plugin keeps them.
pub async fn leaked(session: &Session, valid: &BTreeSet<String>) -> Result<Leaked, IpamError> {
    // GC looks at those pods alone that leaked addresses are noted for.
    if !is_calico(session) && session.is_on_kubernetes() {
        return Ok(Leaked::default());
    }
    let mut batch = ReadBatch::new();
    let all = batch.list::<Block>(&None);
    let answers = session.store.read(&batch).await?;
    let unreadable = answers.each(&all).filter(|(_, block)| block.is_err()).map(|(cidr, _)| cidr).collect();
    let leaked = cni::leaked(&answers.list(&all), &session.call.conf.name, &session.facts.node, valid);
    let leaked = leaked.beside_unreadable(unreadable);
    Ok(if is_calico(session) { leaked } else { leaked.without_leaks() })
}

/// GC: gives back what leaked, but for what containers in `keep` hold, once endpoints gave it up; one text per failure.
///
/// `staying`: containers that the runtime does not name, and whose network stays.
pub async fn gc(session: &Session, leaked: Leaked, keep: &BTreeSet<String>, staying: &BTreeSet<String>) -> Vec<String> {
    if !is_calico(session) {
        // That plugin knows the containers of the list alone.
        if !staying.is_empty() {
            let (plugin, containers) = (&session.call.conf.ipam.ipam_type, Vec::from_iter(staying.iter().cloned()));
            let containers = containers.join(", ");
            return vec![format!("GC of IPAM plugin {plugin} is left out, as these containers stay: {containers}")];
        }
        return gc_foreign(session).err().map(|error| error.to_string()).into_iter().collect();
    }
    let endpoints = |container: &str| {
        // Of any interface: what leaked is of the whole container.
        let orchestrator = Orchestrator::Cni(ContainerFacts::new(&session.call.conf.name));
        let facts = EndpointFacts {
            node: session.facts.node.clone(),
            container_id: container.to_owned(),
            endpoint: String::new(),
            orchestrator,
        };
        EndpointsOf::new(&session.store, session.is_on_kubernetes(), facts)
    };
    let _releasing = (leaked.containers() > 0).then(Releasing::here);
    let collected = leaked.release(&session.store, &SystemClock::start(), keep, endpoints).await;
    for handle in &collected.released {
        tracing::info!(%handle, "released addresses of a container that is gone");
    }
    let failed = collected.failed.iter();
    failed.map(|(handle, error)| format!("release handle {handle}: {error}")).collect()
}

/// GC is passed on to a foreign plugin; one that does not know it has nothing to say.
fn gc_foreign(session: &Session) -> Result<(), CniError> {
    match call_foreign(session, "GC") {
        Err(error) if !is_too_old(&error) => Err(error),
        _ => Ok(()),
    }
}

/// A plugin of before 1.1.0 refuses the version, the command, or that no container is named, as Debian's host-local
/// does.
fn is_too_old(error: &CniError) -> bool {
    [Code::INCOMPATIBLE_VERSION, Code::INVALID_ENVIRONMENT, Code::UNKNOWN_CONTAINER].contains(&error.code)
}

/// Every verb but ADD: the subnets matter to none of them.
fn call_foreign(session: &Session, command: &str) -> Result<Vec<u8>, CniError> {
    let conf = Subnets::any().fill_in(&session.call)?;
    foreign(session)?.call(command, &for_delegate(&session.call.raw_args), &conf)
}

fn foreign(session: &Session) -> Result<Delegate, CniError> {
    let path: Vec<_> = session.call.path.iter().map(Into::into).collect();
    Delegate::find(&session.call.conf.ipam.ipam_type, &path)
}

fn with_addresses(result: CniResult) -> Result<CniResult, CniError> {
    match result.ips.is_empty() {
        true => Err(CniError::internal("IPAM plugin returned missing IP config")),
        false => Ok(result),
    }
}

/// A plugin that failed half-way, or printed what is no use, may have allocated: the specification wants its DEL then
/// (CNI-219). That is by container, and so only right for one that held nothing before.
fn add_foreign(session: &Session, fresh: bool) -> Result<CniResult, CniError> {
    let conf = match &session.subnets {
        Some(subnets) => subnets.fill_in(&session.call)?,
        None => Cow::Borrowed(session.call.raw.as_slice()),
    };
    let outcome = foreign(session)?
        .call("ADD", &for_delegate(&session.call.raw_args), &conf)
        .and_then(|printed| CniResult::parse(&printed, session.call.version))
        .and_then(with_addresses);
    if outcome.is_err()
        && fresh
        && let Err(error) = release_foreign(session)
    {
        tracing::warn!(%error, "cannot release what the IPAM plugin may have allocated; DEL will");
    }
    outcome
}

/// DEL of a foreign plugin; nothing to do when `calico-ipam` keeps the addresses.
pub fn release_foreign(session: &Session) -> Result<(), CniError> {
    if is_calico(session) {
        return Ok(());
    }
    call_foreign(session, "DEL")?;
    tracing::info!(plugin = session.call.conf.ipam.ipam_type, "the IPAM plugin released the addresses");
    Ok(())
}
