//! [`Context`]: the configuration and the connections of one call.

use std::time::Duration;

use allocation::journal::{self, Journal};
use dataplane::KernelNetwork;
use datastore::{ClusterStore as _, Datastore, DatastoreConfig};
use ipam_plugin::cni::IpamRequest;
use ipam_plugin::kubernetes_api::KubernetesApi;
use ipam_plugin::{busy_server, datastore_settings};
use libcalico::store::{EndpointForm, Store as _};
use libcalico::workload::{ContainerIdentity, Orchestrator, PodIdentity, WorkloadIdentity};
use netconf::conf::DatastoreType;
use netconf::{Call, CniError, Code, Command, NetConf};
use node_process::node_name;
use os::clock::{Clock as _, SystemClock};
use os::node_files::NodeFiles;

use crate::interface::InterfaceConfig;
use crate::ipam::{self, IpamCall};
use crate::pod_lookup;
use crate::world::{ThisNode, World};

/// The time in which the datastore, and a separate API server, must answer at least one request of
/// a DEL.
const FIRST_RESPONSE_LIMIT_OF_DEL: Duration = Duration::from_secs(3);

/// The store, clock, network and files on which a call acts.
#[derive(Debug)]
pub struct Host<W: World> {
    /// The settings of the connection to the datastore.
    pub datastore_config: DatastoreConfig,
    /// The datastore.
    pub store: W::Store,
    /// The Kubernetes API.
    pub api: KubernetesApi<W::Store>,
    /// The clock, whose elapsed time begins with the call.
    pub clock: W::Clock,
    /// The network of the node.
    pub network: W::Network,
    /// The files and locks of the node.
    pub files: NodeFiles,
}

/// A CNI call and the connections that serve it.
#[derive(Debug)]
pub struct Context<W: World> {
    /// The decoded call.
    pub call: Box<Call>,
    /// The node, the container or pod, and the interface. In a DEL the name of the node may be
    /// unknown and is then empty.
    pub workload: WorkloadIdentity,
    /// The settings of the connection to the datastore.
    pub datastore_config: DatastoreConfig,
    /// The datastore. Opening it sends no request.
    pub store: W::Store,
    /// The Kubernetes API. Opening it sends no request.
    pub api: KubernetesApi<W::Store>,
    /// The clock, whose elapsed time began with the call.
    pub clock: W::Clock,
    /// The network of the node.
    pub network: W::Network,
    /// The files and locks of the node.
    pub files: NodeFiles,
    /// The time of [`Context::clock`] until which requests wait for a busy API server.
    pub busy_until: Duration,
    /// The journal of deferred DELs.
    pub journal: Journal,
}

impl Context<ThisNode> {
    /// Opens the datastore of a call on this node without sending a request. `request_timeout`
    /// replaces the configured time limit of a request; `None` keeps that limit.
    pub fn open(
        call: Box<Call>,
        files: NodeFiles,
        request_timeout: Option<Duration>,
    ) -> Result<Self, CniError> {
        let clock = SystemClock::start();
        let node = node_of(&call, &files)?;
        let datastore_config = datastore_settings::from_conf(&call.conf, request_timeout)?;
        let store = Datastore::open(&datastore_config)
            .map_err(|error| CniError::new(Code::INVALID_CONFIG, error.to_string()))?;
        let api = pod_lookup::open_api(&call, &datastore_config)?;
        let host = Host {
            datastore_config,
            store,
            api,
            clock,
            network: KernelNetwork,
            files,
        };
        Self::new(call, node, host)
    }
}

impl<W: World> Context<W> {
    /// Creates the context of a call on the node of this name, which a DEL need not know. Applies
    /// the limits of the verb to the requests of the call.
    ///
    /// # Errors
    /// Refuses an ADD without a pod whose endpoint cannot be stored.
    pub fn new(call: Box<Call>, node: String, host: Host<W>) -> Result<Self, CniError> {
        let Host {
            datastore_config,
            store,
            api,
            clock,
            network,
            files,
        } = host;
        let busy_until = match call.command {
            Command::Del => {
                store.expect_first_answer_within(FIRST_RESPONSE_LIMIT_OF_DEL);
                if let KubernetesApi::Separate(api) = &api {
                    api.expect_first_answer_within(FIRST_RESPONSE_LIMIT_OF_DEL);
                }
                // A DEL cuts the traffic and records its remaining work before it waits for a busy
                // server.
                clock.elapsed()
            }
            command => clock.elapsed() + busy_server::longest_wait(command),
        };
        match (call.command, store.endpoint_form()) {
            // Without a pod, the last step of the ADD would fail.
            (Command::Add, EndpointForm::PodAnnotations) => call.args.require_pod().map(drop)?,
            (_, EndpointForm::PodAnnotations | EndpointForm::Object) => {}
        }
        let context = Context {
            workload: workload_of(&call, node),
            journal: Journal::of_node(&files),
            call,
            datastore_config,
            store,
            api,
            busy_until,
            clock,
            network,
            files,
        };
        context.wait_for_busy_server_until(busy_until);
        Ok(context)
    }

    /// Makes requests wait for a busy API server until this time of [`Context::clock`].
    pub fn wait_for_busy_server_until(&self, until: Duration) {
        let longest = until.saturating_sub(self.clock.elapsed());
        busy_server::wait_at_most(longest, &self.files, &self.store, &self.api);
    }

    /// Returns the call as far as it assigns or releases addresses.
    pub fn ipam_call(&self) -> IpamCall<'_, W> {
        IpamCall {
            call: &self.call,
            node: &self.workload.node,
            store: &self.store,
            clock: &self.clock,
            files: &self.files,
        }
    }

    /// Returns the request of this call to `calico-ipam`; `None` for another IPAM plugin.
    pub fn ipam_request(&self) -> Option<IpamRequest> {
        ipam::request(&self.call, &self.workload.node, &self.files)
    }

    /// Returns K8S_POD_UID of CNI_ARGS where pods contain the endpoints (CNI-223), and an empty text
    /// elsewhere.
    pub fn pod_uid(&self) -> &str {
        match self.store.endpoint_form() {
            EndpointForm::PodAnnotations => {
                let pod = self.call.args.pod();
                pod.and_then(|pod| pod.uid).unwrap_or_default()
            }
            EndpointForm::Object => "",
        }
    }

    /// Returns the interface that this call adds, checks or deletes.
    pub fn interface(&self) -> InterfaceConfig<'_> {
        InterfaceConfig {
            call: &self.call,
            workload: &self.workload,
        }
    }

    /// Returns the datastore's address without credentials, which is the datastore's name in the
    /// journal.
    pub fn datastore_name(&self) -> String {
        journal::datastore_name(&self.datastore_config)
    }
}

/// Returns the name of the node. In a DEL the name may be unknown and is then empty.
fn node_of(call: &Call, files: &NodeFiles) -> Result<String, CniError> {
    match call.command {
        Command::Del => Ok(node_name_or_empty(&call.conf, files)),
        // Without the file, the name could be the kernel's host name, which may be that of another
        // node. GC would then release that node's addresses.
        Command::Add | Command::Status | Command::Gc => {
            ensure_nodename_file(&call.conf, files)?;
            node_name::from_conf(&call.conf)
        }
        Command::Check | Command::Version => node_name::from_conf(&call.conf),
    }
}

/// Fails while the nodename file, which calico-node writes when it starts, is required and missing
/// (CNI-71).
fn ensure_nodename_file(conf: &NetConf, files: &NodeFiles) -> Result<(), CniError> {
    let node = &conf.node;
    match conf.datastore.kind() {
        DatastoreType::Local => return Ok(()),
        DatastoreType::Etcdv3 | DatastoreType::Kubernetes => {}
    }
    if node.nodename_file_optional {
        return Ok(());
    }
    std::fs::metadata(files.path(&node.nodename_file))
        .map(drop)
        .map_err(|error| {
            CniError::new(
                Code::TRY_AGAIN,
                format!("nodename file {}: {error}", node.nodename_file),
            )
            .with_details(
                "check that the calico/node container is running and has mounted /var/lib/calico/; \
                 without calico-node set \"nodename_file_optional\": true",
            )
        })
}

/// Returns the name of the node; empty if no source gives a name. If the required nodename file is
/// missing, does not return the kernel's host name, which may be the name of another node.
pub fn node_name_or_empty(conf: &NetConf, files: &NodeFiles) -> String {
    if let Err(error) = ensure_nodename_file(conf, files) {
        tracing::warn!(
            %error,
            "cannot use the nodename file; using nodename of the configuration"
        );
        return conf.node.nodename.clone();
    }
    node_name::from_conf(conf).unwrap_or_else(|error| {
        tracing::warn!(
            %error, "cannot determine the name of this node; the name counts as unknown",
        );
        String::new()
    })
}

/// Returns the workload of a call: a pod if CNI_ARGS names one (CNI-31), else a plain container.
fn workload_of(call: &Call, node: String) -> WorkloadIdentity {
    let orchestrator = match call.args.pod() {
        Some(pod) => Orchestrator::Kubernetes(PodIdentity {
            namespace: pod.namespace.into(),
            name: pod.name.into(),
            ..PodIdentity::default()
        }),
        None => {
            let mut container = ContainerIdentity::new(&call.conf.name);
            if !call.args.test_namespace.is_empty() {
                container.namespace = call.args.test_namespace.clone();
            }
            // Every verb applies the labels, because one of them may name the namespace of the
            // endpoint, in which DEL has to find the endpoint (CNI-154).
            let labels = &call.conf.args.mesos.network_info.labels.labels;
            container.add_mesos_labels(
                labels
                    .iter()
                    .map(|label| (label.key.as_str(), label.value.as_str())),
            );
            Orchestrator::Cni(container)
        }
    };
    WorkloadIdentity {
        node,
        container_id: call.container_id.clone(),
        endpoint: call.ifname.clone(),
        orchestrator,
    }
}
