//! ADD: gives a container its network.
//!
//! Reads, addresses, interface, endpoint, in this order; a failure undoes what was done in the reverse order, and the
//! error says which step failed and what was taken back (design decision 7, CNI-219, CNI-221).

mod another;
mod set_up;
mod undo;

use std::mem;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use ipam_plugin::ahead::Ahead;
use ipam_plugin::cni::IpamCall;
use ipam_plugin::own_node;
use libcalico::api::{Profile, WorkloadEndpoint};
use libcalico::conversion::{Orchestrator, ProfileReach, default_profile};
use libcalico::{names, validation};
use netconf::{CniError, CniResult, Code};

use self::another::set_up;
use self::set_up::attached;
use self::undo::undo;
use crate::annotations::Annotations;
use crate::attach::{self, Attachment};
use crate::dataplane::{NetnsFd, Occupant};
use crate::endpoint::{self, EndpointWrite};
use crate::ipam::{self, Allocator};
use crate::kubernetes::Facts;
use crate::session::{Known, Question, Session, naming_error, store_error};
use crate::{chain, endpoint_plan, host_interface, kubevirt, owed, policy_wait, readiness};

/// Networks the container and returns the result to print.
pub async fn add(session: &mut Session) -> Result<CniResult, CniError> {
    let previous = session.call.prev_result.clone();
    for key in session.call.conf.windows.ignored() {
        tracing::warn!(key, "this key of the configuration is for Windows and does nothing here");
    }
    refuse_what_cannot_work(session)?;
    let netns = attach::open_netns(session)?;
    Box::pin(owed::settle_before_add(session)).await?;
    Box::pin(wait_for_gates(session)).await?;

    let mut call = ipam::call_of(session);
    let occupant = host_interface::in_the_way(session, netns.as_ref())?;
    // Nothing is written ahead of an ADD that may be refused.
    let may_be_refused = matches!(occupant, Some(Occupant::Holder(_)));
    let ahead = call.as_ref().filter(|_| !may_be_refused).and_then(|call| Ahead::of(call, &session.store));
    let question = call.as_ref().map_or(Question::Endpoint, |call| Question::Assign(call, ahead.as_ref()));
    let mut known = session.read(question).await?;
    session.timings.stage("read");
    let annotations = match Box::pin(prepare(session, &mut known, call.as_mut())).await {
        Ok(annotations) => annotations,
        Err(error) => {
            Box::pin(ipam::forget_ahead(session, known.assign.as_mut())).await;
            return Err(error);
        }
    };

    let lock = ahead.map(Ahead::into_lock);
    let result = match (known.endpoints.first(), &session.facts.orchestrator) {
        (Some(_), Orchestrator::Cni(_)) => {
            drop(lock);
            // Another ADD of the container may make the interface meanwhile. Where an interface is in the way, that one
            // is the state before.
            if !may_be_refused {
                session.before = Box::pin(host_interface::before(session, occupant)).await?;
            }
            Box::pin(join(session, netns, &known)).await?
        }
        _ => {
            session.before = Box::pin(host_interface::before(session, occupant)).await?;
            network(session, netns, Allocator { call, lock }, known, &annotations).await?
        }
    };
    Ok(chain::joined(previous, result))
}

/// Before anything is read that the ADD goes by: gates may take minutes, and a pool may be out of service then (CNI-77,
/// IPAM-100).
async fn wait_for_gates(session: &Session) -> Result<(), CniError> {
    let gates = &session.call.conf.readiness.readiness_gates;
    if gates.is_empty() {
        return Ok(());
    }
    session.read(Question::Cluster).await?.ensure_ready()?;
    readiness::wait_for(gates, readiness::Patience::default())
}

/// Makes what was read part of the session and of the call of IPAM, before anything is written but what was done ahead.
async fn prepare(
    session: &mut Session,
    known: &mut Known,
    mut call: Option<&mut IpamCall>,
) -> Result<Annotations, CniError> {
    known.ensure_ready()?;
    if let Some(prelude) = &mut known.assign {
        let made = own_node::ensure(&session.store, &session.facts.node, prelude).await;
        made.map_err(|error| store_error("make the Node", &error))?;
    }
    let facts = mem::replace(&mut known.kubernetes, Ok(Facts::default()))?;
    let mut annotations = Annotations::default();
    if let Some(described) = &facts.pod {
        described.ensure_is_pod_of(&session.call)?;
        annotations = Annotations::of(&described.pod, &described.namespace, &session.call.conf)?;
        if let Some(call) = call.as_deref_mut() {
            annotations.tell(call);
        }
        session.facts.orchestrator = Orchestrator::Kubernetes(described.pod.facts());
        let conf = &session.call.conf;
        // With another policy type upstream does not look at the pod.
        if conf.dataplane_options.grpc_socket().is_some() && conf.policy.policy_type == "k8s" {
            session.pod_annotations.clone_from(&described.pod.metadata.annotations);
        }
    }
    if let (Some(pod), Some(labels)) = (call.as_deref_mut().and_then(|call| call.pod.as_mut()), facts.labels) {
        pod.namespace.labels = labels;
    }
    session.subnets = facts.subnets;
    session.machine = kubevirt::arriving(session, facts.machine_pod.as_ref()).await?;
    if let Some(call) = call {
        call.machine.clone_from(&session.machine);
    }
    Ok(annotations)
}

/// A container that is networked already keeps its interface and addresses; only its profiles may grow (CNI-149). One
/// whose interface is gone, as all are after a reboot, gets it again: upstream promises one that is not there.
async fn join(session: &mut Session, netns: Option<NetnsFd>, known: &Known) -> Result<CniResult, CniError> {
    let existing = &known.endpoints[0];
    refuse_second_interface(session, &existing.value)?;
    tracing::info!(endpoint = %existing.key, "the container has an endpoint already");
    let updated = session.facts.update(existing.value.clone(), &[]);
    let remade = match netns {
        Some(netns) if attach::is_gone(session, &netns, &updated)? => Some(remake(session, &netns, &updated).await?),
        _ => None,
    };
    session.timings.stage("dataplane");
    let updated = match &remade {
        Some(attachment) => attached(updated, attachment),
        None => updated,
    };
    let write = EndpointWrite::of(Some(existing.clone()), updated).with_profile(profile_wanted(session, known));
    let endpoint = match (write.apply(&session.store).await, &remade) {
        (Ok(endpoint), _) => endpoint,
        (Err(failure), None) => return Err(failure.error),
        (Err(failure), Some(attachment)) => return Err(undo(session, attachment, failure.error).await),
    };
    session.timings.stage("write");
    endpoint::result_of(&endpoint, &session.call)
}

/// Only with addresses that are still the container's: a DEL that was killed half-way may have released them.
async fn remake(session: &Session, netns: &NetnsFd, endpoint: &WorkloadEndpoint) -> Result<Attachment, CniError> {
    let lost = ipam::lost_addresses(session, endpoint).await?;
    if lost.is_empty() {
        return attach::remake(session, netns, endpoint).map_err(CniError::from);
    }
    let name = &endpoint.metadata.name;
    let lost = lost.join("; ");
    let msg = format!("the interface of WorkloadEndpoint {name} is gone, and so are its addresses: {lost}");
    Err(CniError::new(Code::TRY_AGAIN, msg)
        .with_details("DEL removes the endpoint; an ADD after that gets new addresses"))
}

/// One interface per container: a result that names another would promise one that is not there (CNI-259).
fn refuse_second_interface(session: &Session, existing: &WorkloadEndpoint) -> Result<(), CniError> {
    let (asked, has) = (&session.call.ifname, &existing.spec.endpoint);
    if asked == has {
        return Ok(());
    }
    let msg = format!("container {} already has interface {has}; it cannot get {asked} too", session.call.container_id);
    Err(CniError::new(Code::INVALID_ENVIRONMENT, msg).with_details(
        "CNI_IFNAME: Calico makes one interface per container; DEL the first, or use another plugin for more",
    ))
}

/// A container that is not networked yet, or a pod whose new sandbox replaces the old one.
async fn network(
    session: &mut Session,
    netns: Option<NetnsFd>,
    allocator: Allocator,
    known: Box<Known>,
    annotations: &Annotations,
) -> Result<CniResult, CniError> {
    let profile = profile_wanted(session, &known);
    let existing = known.endpoints.into_iter().next();
    let held_before = existing.as_ref().map(|entry| &entry.value);
    let lease = ipam::assign(session, allocator, known.assign, held_before, &annotations.addresses).await?;
    session.timings.stage("ipam");

    let (attachment, endpoint, result) = set_up(session, netns, lease, existing, profile, annotations).await?;
    wait_for_policy(session, &endpoint);
    Ok(attachment.complete(result, &session.call))
}

/// The endpoint as far as it is known before the interface is made. Checked now, so that no interface is made for one
/// that could not be written.
fn described(
    session: &Session,
    existing: Option<&endpoint::Existing>,
    addresses: &[IpAddr],
    annotations: &Annotations,
) -> Result<WorkloadEndpoint, CniError> {
    let mut endpoint = match existing {
        Some(existing) => session.facts.update(existing.value.clone(), addresses),
        None => session.facts.create(addresses).map_err(|error| naming_error(&error))?,
    };
    endpoint::set_plain_profile(&mut endpoint, session);
    if matches!(session.facts.orchestrator, Orchestrator::Kubernetes(_)) {
        // In place of what an earlier sandbox's addresses made of them (CNI-240).
        endpoint.spec.ip_nats = annotations.nats(addresses)?;
        endpoint.spec.allow_spoofed_source_prefixes.clone_from(&annotations.source_prefixes);
    }
    endpoint.spec.interface_name = session.host_ifname();
    endpoint::validate(&endpoint)?;
    Ok(endpoint)
}

/// For pods only, as upstream (CNI-138).
fn wait_for_policy(session: &Session, endpoint: &WorkloadEndpoint) {
    let conf = &session.call.conf.readiness;
    let Orchestrator::Kubernetes(pod) = &session.facts.orchestrator else { return };
    if conf.policy_setup_timeout_seconds == 0 {
        return;
    }
    let file = names::endpoint_status_file("k8s", &pod.namespace, &pod.name, &endpoint.spec.endpoint);
    let timeout = Duration::from_secs(conf.policy_setup_timeout_seconds.into());
    if !policy_wait::wait_for_file(Path::new(&conf.endpoint_status_dir), &file, timeout) {
        tracing::warn!(file, directory = %conf.endpoint_status_dir, "policy is not set up yet; the pod starts without waiting longer");
    }
}

/// The profile named after the network, when this configuration calls for one and it is missing (CNI-140).
fn profile_wanted(session: &Session, known: &Known) -> Option<Profile> {
    let conf = &session.call.conf;
    // Profiles of Kubernetes are made of namespaces and service accounts.
    if !conf.policy.policy_type.is_empty() || known.profile.is_some() || session.is_on_kubernetes() {
        return None;
    }
    let reach = match session.facts.orchestrator {
        Orchestrator::Cni(_) => ProfileReach::SameNetwork,
        Orchestrator::Kubernetes(_) => ProfileReach::Anyone,
    };
    Some(default_profile(&conf.name, reach))
}

/// What would fail at the last step fails before the first (CNI-85, CNI-140, CNI-148).
fn refuse_what_cannot_work(session: &Session) -> Result<(), CniError> {
    let conf = &session.call.conf;
    let plain = matches!(session.facts.orchestrator, Orchestrator::Cni(_));
    if plain && conf.feature_control.ip_addrs_no_ipam {
        return Err(CniError::new(Code::UNSUPPORTED_FIELD, "ip_addrs_no_ipam is not supported for this runtime")
            .with_details("$.feature_control.ip_addrs_no_ipam needs Kubernetes (K8S_POD_NAME in CNI_ARGS)"));
    }
    if conf.policy.policy_type.is_empty() {
        let profile = default_profile(&conf.name, ProfileReach::SameNetwork);
        validation::validate_profile(&profile).map_err(|error| {
            CniError::new(Code::INVALID_CONFIG, error.to_string())
                .with_details("$.name: the network's name becomes a label; 63 letters, digits and '-_.' at most")
        })?;
    }
    endpoint_plan::effective_mtu(session)?;
    let mut endpoint = session.facts.create(&[]).map_err(|error| naming_error(&error))?;
    endpoint.spec.interface_name = session.host_ifname();
    endpoint::validate(&endpoint)
}
