//! [`Sources::look`]: assesses the interfaces that this plugin created on this node.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use allocation::cluster_state;
use ipam_plugin::cri::{CriError, all_sandboxes};
use libcalico::dead_interface::{
    DeadLink, LOOK_INTERVAL, LinkEvidence, LinkVerdict, Peer, UNNAMED_POD_CONFIRMATION, assess,
};
use libcalico::failure::{Failure, OrFail};
use libcalico::ipam::Statement;
use libcalico::names::InterfaceAlias;
use netconf::NetConf;
use netconf::conf::DatastoreType;
use node_process::node_name;

use crate::node_conf;
use crate::pod_endpoints::{FoundEndpoints, WantedEndpoint, pod_endpoints};
use dataplane::host_network::{HostNetwork, NetworkError, addresses_behind, pod_interface_prefix};

/// Time limit for one request to the datastore.
const DEADLINE: Duration = Duration::from_secs(5);

/// The sources of evidence on this node.
#[derive(Debug, Clone, Copy)]
pub struct Sources<'a> {
    /// The kernel.
    pub network: &'a dyn HostNetwork,
    /// The configuration of the plugins, which names the datastore.
    pub conf: &'a Statement<NetConf>,
    /// The socket of the container runtime; `None` for each usual socket that exists.
    pub runtime_socket: Option<&'a Path>,
}

/// An interface with an alias of this plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssessedLink {
    /// The interface.
    pub link: DeadLink,
    /// The destinations of the host routes through the interface.
    pub addresses: Vec<IpAddr>,
    /// The use of the interface.
    pub verdict: LinkVerdict,
    /// The time for which the interface has to be dead before it is removed.
    pub confirmation: Duration,
}

/// An interface whose sandbox and endpoint are still to be looked up.
struct Candidate {
    link: DeadLink,
    addresses: Vec<IpAddr>,
    evidence: LinkEvidence,
    confirmation: Duration,
}

impl Candidate {
    fn assess(self) -> AssessedLink {
        let Candidate {
            link,
            addresses,
            evidence,
            confirmation,
        } = self;
        AssessedLink {
            link,
            addresses,
            verdict: assess(&evidence),
            confirmation,
        }
    }

    fn is_unused_so_far(&self) -> bool {
        let LinkEvidence {
            process,
            call,
            sandbox,
            ..
        } = &self.evidence;
        *process == Statement::Known(false)
            && *call != Statement::Known(true)
            && *sandbox != Statement::Known(true)
    }
}

impl Sources<'_> {
    /// Returns the interfaces of this plugin with their use. Asks for the CNI calls, and the
    /// container runtimes, about interfaces whose other end is in a namespace without a process,
    /// and the datastore about those without a sandbox.
    pub async fn look(&self) -> Result<Vec<AssessedLink>, NetworkError> {
        let mut candidates = self.candidates()?;
        if candidates.iter().any(Candidate::is_unused_so_far) {
            // In this order, because the runtime may list a sandbox only after the ADD.
            let calls = self.network.containers_of_calls()?;
            let sandboxes = self.sandboxes().await;
            for candidate in candidates
                .iter_mut()
                .filter(|candidate| candidate.is_unused_so_far())
            {
                candidate.evidence.call = contains_container(&calls, &candidate.link.alias);
                candidate.evidence.sandbox = contains_container(&sandboxes, &candidate.link.alias);
            }
            if matches!(sandboxes, Statement::Known(_)) {
                self.add_endpoints(&mut candidates).await;
            }
        }
        Ok(candidates.into_iter().map(Candidate::assess).collect())
    }

    fn candidates(&self) -> Result<Vec<Candidate>, NetworkError> {
        let prefix = pod_interface_prefix();
        let links = self
            .network
            .pod_links()?
            .into_iter()
            .filter(|link| link.name.starts_with(&prefix));
        // Only an alias proves that this plugin created an interface.
        let own: Vec<(DeadLink, Peer)> = links
            .filter_map(|link| {
                Some((
                    DeadLink {
                        name: link.name,
                        index: link.index,
                        alias: link.alias?,
                    },
                    link.peer,
                ))
            })
            .collect();
        if own.is_empty() {
            return Ok(Vec::new());
        }
        let inhabited = self.network.inhabited_namespaces()?;
        let routes = self.network.routes()?;
        let not_asked = || Statement::Unknown("not asked".into());
        let candidate = |(link, peer): (DeadLink, Peer)| Candidate {
            addresses: addresses_behind(&link.name, &routes),
            evidence: LinkEvidence {
                process: peer.has_process(&inhabited),
                call: not_asked(),
                sandbox: not_asked(),
                endpoint: not_asked(),
            },
            link,
            confirmation: LOOK_INTERVAL,
        };
        Ok(own.into_iter().map(candidate).collect())
    }

    /// Returns the IDs of all sandboxes of this node.
    async fn sandboxes(&self) -> Statement<BTreeSet<String>> {
        match all_sandboxes(self.runtime_socket).await {
            Ok(listed) if listed.listeners.iter().all(|process| is_visible(*process)) => {
                Statement::Known(listed.ids)
            }
            // The processes of containers are then hidden, too.
            Ok(_) => Statement::Unknown(
                "the container runtime is in another PID namespace than this process; run this \
                 process in the PID namespace of the node (hostPID)"
                    .into(),
            ),
            Err(CriError::NoSocket) => Statement::Unknown(
                "no socket of a container runtime exists at a usual place; mount its directory at \
                 the same path, or name the socket with --runtime-socket"
                    .into(),
            ),
            Err(error) => Statement::Unknown(error.to_string()),
        }
    }

    /// Adds the evidence of the datastore for the candidates that no other source knows.
    async fn add_endpoints(&self, candidates: &mut [Candidate]) {
        let unused = candidates
            .iter()
            .filter(|candidate| candidate.is_unused_so_far());
        let wanted: Vec<WantedEndpoint<'_>> = unused
            .map(|candidate| WantedEndpoint {
                interface: &candidate.link.name,
                addresses: &candidate.addresses,
                alias: Some(&candidate.link.alias),
            })
            .collect();
        if wanted.is_empty() {
            return;
        }
        let read = match self.conf {
            Statement::Known(conf) => read_endpoints(conf, &wanted)
                .await
                .map(|found| (conf, found)),
            Statement::Unknown(reason) => Err(Failure::new(reason)),
        };
        for candidate in candidates
            .iter_mut()
            .filter(|candidate| candidate.is_unused_so_far())
        {
            candidate.evidence.endpoint = match &read {
                Ok((conf, found)) => {
                    candidate.confirmation = confirmation(conf, found, &candidate.link.name);
                    endpoint_evidence(conf, found, &candidate.link)
                }
                Err(error) => Statement::Unknown(error.to_string()),
            };
        }
    }
}

/// Returns whether one of the containers is that of an alias.
fn contains_container(
    containers: &Statement<BTreeSet<String>>,
    alias: &InterfaceAlias,
) -> Statement<bool> {
    match containers {
        Statement::Known(ids) => Statement::Known(ids.iter().any(|id| alias.is_of_container(id))),
        Statement::Unknown(reason) => Statement::Unknown(reason.clone()),
    }
}

/// Returns true if the datastore leads from an interface to its pod.
fn leads_to_pod(conf: &NetConf, found: &FoundEndpoints, interface: &str) -> bool {
    match conf.datastore.kind() {
        DatastoreType::Etcdv3 | DatastoreType::Local => true,
        // No stored endpoint names an interface. Only an allocation leads to the pod.
        DatastoreType::Kubernetes => found.with_named_pod.contains(interface),
    }
}

/// Returns the time for which an interface has to be dead before it is removed.
fn confirmation(conf: &NetConf, found: &FoundEndpoints, interface: &str) -> Duration {
    if leads_to_pod(conf, found, interface) {
        LOOK_INTERVAL
    } else {
        UNNAMED_POD_CONFIRMATION
    }
}

/// Returns whether an endpoint has the interface.
fn endpoint_evidence(conf: &NetConf, found: &FoundEndpoints, link: &DeadLink) -> Statement<bool> {
    if found.by_interface.contains_key(&link.name) {
        return Statement::Known(true);
    }
    if !leads_to_pod(conf, found, &link.name) {
        if conf.feature_control.ip_addrs_no_ipam {
            let reason = "IPAM names no pod for it, and with feature_control.ip_addrs_no_ipam a \
                          pod may have no allocation";
            return Statement::Unknown(reason.into());
        }
        if link.alias.container_id().is_none() {
            return Statement::Unknown(
                "IPAM names no pod for it, and its alias has only a digest of the container".into(),
            );
        }
    }
    Statement::Known(false)
}

async fn read_endpoints(
    conf: &NetConf,
    wanted: &[WantedEndpoint<'_>],
) -> Result<FoundEndpoints, Failure> {
    let node = node_name::from_conf(conf)?;
    let (config, store) = node_conf::datastore(conf, DEADLINE)?;
    if let Some(file) = config.missing_file() {
        return Err(Failure::new(format_args!(
            "the file {} of the embedded datastore does not exist",
            file.display()
        )));
    }
    // Handles of a group that a migration has locked do not lead to the pods that started since.
    cluster_state::ensure_unlocked(&store).await?;
    let found = pod_endpoints(conf, &store, &node, wanted).await;
    found.or_fail("endpoints")
}

/// Returns true if this process sees a process of its PID namespace; 0 is a process outside of it.
fn is_visible(process: i32) -> bool {
    process > 0 && Path::new("/proc").join(process.to_string()).exists()
}

#[cfg(test)]
mod tests;
