//! Runs `calico-ipam` from the start of the process to its exit status.

use std::mem::ManuallyDrop;
use std::net::IpAddr;
use std::path::Path;
use std::process::ExitCode;

use datastore::{ClusterStore, Datastore};
use futures::future::join;
use libcalico::names::EndpointIdentifiers;
use libcalico::store::StoreError;
use netconf::invocation::{Invocation, Plugin};
use netconf::{Call, CallError, CniError, Code, Command};

use crate::cli;
use crate::cni::{self, IpamRequest};
use crate::kubernetes_api::KubernetesApi;
use crate::pod_lookup::{PodLookup, PodQueries};
use crate::{busy_server, datastore_settings, upgrade};
use allocation::alloc::inputs::AllocationInputs;
use allocation::error::cni_error;
use allocation::release::ReleaseInputs;
use allocation::{cluster_state, own_node};
use dataplane::host_link::HostLinks;
use node_process::process::is_path_to_own_netns;
use node_process::{node_name, process};
use os::clock::{Clock, SystemClock};
use os::node_files::NodeFiles;

const COMPONENT: &str = "ipam";

/// Runs `calico-ipam`. The command line uses `links` to find network interfaces of the kernel.
pub fn main(links: &dyn HostLinks) -> ExitCode {
    if cli::is_command_line() {
        return cli::main(links);
    }
    process::report_panics();
    match process::invocation(Plugin::CalicoIpam) {
        Ok(Invocation::Print(printed)) => process::print(&printed),
        Ok(Invocation::Call(call)) => serve(*call),
        Ok(Invocation::Upgrade) => process::finish(upgrade::run()),
        // The parser accepts `-t` for `calico` only.
        Ok(Invocation::TestConnection) => {
            let error = CniError::new(
                Code::INVALID_ENVIRONMENT,
                "-t is an option of calico, not of calico-ipam",
            );
            process::finish(Err(error.into()))
        }
        Err(error) => process::refuse(error, COMPONENT),
    }
}

fn serve(call: Call) -> ! {
    process::start_call_log(&call, COMPONENT);
    process::run(async {
        operate(&call).await.map_err(|error| {
            tracing::error!(%error, "{} failed", call.command.as_str());
            CallError {
                version: Some(call.version),
                ..error.into()
            }
        })
    })
}

/// Returns the text for stdout.
async fn operate(call: &Call) -> Result<String, CniError> {
    let (clock, files) = (SystemClock::start(), NodeFiles::of_this_node());
    let ipam = IpamRequest::from_call(call, node_name::from_conf(&call.conf)?, &files);
    if matches!(call.command, Command::Add | Command::Del | Command::Check) {
        check_identifiers(call, &ipam.node)?;
    }
    let config = datastore_settings::from_conf(&call.conf, None)?;
    let store = Datastore::open(&config)
        .map_err(|error| CniError::new(Code::INVALID_CONFIG, error.to_string()))?;
    // Never dropped, like the runtime, because the process exits after this call.
    let store = ManuallyDrop::new(store);
    let store = &*store;
    let queries = PodQueries::for_call(call, &config);
    let api = ManuallyDrop::new(KubernetesApi::for_call(
        &call.conf,
        &config,
        queries.is_any(),
    )?);
    let longest_wait = busy_server::longest_wait(call.command);
    busy_server::wait_at_most(longest_wait, &files, store, &api);
    if call.command == Command::Add {
        refuse_own_netns(call)?;
    }
    let operation = Operation {
        call,
        store,
        api: &*api,
        clock: &clock,
        queries,
    };
    operation.run(ipam).await
}

/// An operation of `calico-ipam`, and what it acts on.
struct Operation<'c, S, C> {
    call: &'c Call,
    store: &'c S,
    api: &'c KubernetesApi<S>,
    clock: &'c C,
    queries: PodQueries,
}

impl<S: ClusterStore, C: Clock> Operation<'_, S, C> {
    /// Runs the verb of the call, and returns the text for stdout.
    async fn run(&self, ipam: IpamRequest) -> Result<String, CniError> {
        let nothing = |()| String::new();
        match self.call.command {
            Command::Add => self.add(ipam).await,
            Command::Del => self.del(ipam).await.map(nothing),
            Command::Check => self.check(ipam).await.map(nothing),
            Command::Status => {
                let status = cni::status(self.store, &ipam).await;
                busy_server::status(status, self.store, self.api).map(nothing)
            }
            Command::Gc => self.collect(&ipam).await.map(nothing),
            Command::Version => Ok(String::new()),
        }
    }

    async fn add(&self, mut ipam: IpamRequest) -> Result<String, CniError> {
        let (store, clock) = (self.store, self.clock);
        let query = ipam.inputs_query();
        let read = async || {
            let inputs = AllocationInputs::read(store, &query);
            let (inputs, lookup) = join(inputs, self.read_pod()).await;
            Ok::<_, CniError>((inputs.map_err(store_error)?, lookup?))
        };
        let begun = clock.elapsed();
        let (mut inputs, lookup) = cluster_state::read_unlocked(store, read).await?;
        tracing::debug!(
            pools = inputs.pools.len(),
            own_blocks = inputs.affinities.len(),
            "read the pools and the node's affinities"
        );
        lookup.apply_to(&mut ipam);
        own_node::ensure(store, &ipam.node, &mut inputs)
            .await
            .map_err(store_error)?;
        let added = cni::add(store, clock, &ipam, inputs, None).await?;
        // After a failure the addresses stay allocated until the DEL, which uses the right API
        // group.
        cluster_state::ensure_still_unlocked(store, clock, begun).await?;
        added.result.to_json(self.call.version)
    }

    async fn del(&self, mut ipam: IpamRequest) -> Result<(), CniError> {
        let store = self.store;
        let handles = ipam.handles_to_read(store);
        let read = async || {
            let inputs = ReleaseInputs::read(store, &handles);
            let (inputs, lookup) = join(inputs, self.read_pod()).await;
            Ok::<_, CniError>((inputs.map_err(store_error)?, lookup?))
        };
        let (inputs, lookup) = cluster_state::read_unlocked(store, read).await?;
        tracing::debug!(
            any_exists = !inputs.is_empty(),
            "read the container's handles"
        );
        lookup.apply_to(&mut ipam);
        cni::del(store, self.clock, &ipam, inputs).await
    }

    async fn check(&self, mut ipam: IpamRequest) -> Result<(), CniError> {
        let recorded = recorded(self.call)?;
        let read = async || self.read_pod().await;
        let lookup = cluster_state::read_unlocked(self.store, read).await?;
        lookup.apply_to(&mut ipam);
        cni::check(self.store, &ipam, &recorded).await
    }

    async fn read_pod(&self) -> Result<PodLookup, CniError> {
        self.queries.read(self.call, self.api, self.store).await
    }

    async fn collect(&self, ipam: &IpamRequest) -> Result<(), CniError> {
        cluster_state::ensure_unlocked(self.store).await?;
        let valid_attachments = self.call.conf.valid_attachments.iter().flatten();
        let valid = valid_attachments
            .map(|listed| listed.container_id.clone())
            .collect();
        let _releasing = ipam.begin_release();
        let outcome = cni::gc(self.store, self.clock, &ipam.network, &ipam.node, &valid)
            .await
            .map_err(|error| cni_error(&error))?;
        if outcome.failed.is_empty() {
            return Ok(());
        }
        let failures: Vec<String> = outcome
            .failed
            .iter()
            .map(|(handle, error)| format!("{handle}: {error}"))
            .collect();
        Err(CniError::internal("cannot release some leaked addresses")
            .with_details(failures.join("; ")))
    }
}

/// Verifies that the identifiers can form the name of a WorkloadEndpoint, although this plugin
/// creates none (IPAM-18).
fn check_identifiers(call: &Call, node: &str) -> Result<(), CniError> {
    let pod = call.args.pod();
    let identifiers = EndpointIdentifiers {
        node: node.to_owned(),
        orchestrator: if pod.is_some() { "k8s" } else { "cni" }.to_owned(),
        endpoint: call.ifname.clone(),
        pod: pod.map(|pod| pod.name.to_owned()).unwrap_or_default(),
        container_id: call.container_id.clone(),
        ..EndpointIdentifiers::default()
    };
    identifiers.name().map(|_| ()).map_err(|error| {
        CniError::new(
            Code::INVALID_ENVIRONMENT,
            format!("error constructing WorkloadEndpoint name: {error}"),
        )
    })
}

/// Refuses a container that is in the plugin's own network namespace, because that is the host's.
/// Upstream detects this only after it has printed a result (IPAM-7).
fn refuse_own_netns(call: &Call) -> Result<(), CniError> {
    if call.netns_override || !is_path_to_own_netns(Path::new(&call.netns)) {
        return Ok(());
    }
    let error = CniError::new(
        Code::SAME_NETNS,
        "plugin's netns and netns from CNI_NETNS should not be the same",
    );
    Err(error.with_details(
        "give the container a network namespace of its own, or set CNI_NETNS_OVERRIDE=1",
    ))
}

fn store_error(error: StoreError) -> CniError {
    cni_error(&error.into())
}

/// Returns the addresses of the ADD from `prevResult`, which the CNI specification requires for
/// CHECK.
fn recorded(call: &Call) -> Result<Vec<IpAddr>, CniError> {
    let previous = call.prev_result.as_ref().ok_or_else(|| {
        CniError::new(Code::INVALID_CONFIG, "required prevResult missing").with_details(
            "CHECK compares with the result of ADD; the runtime passes it as prevResult",
        )
    })?;
    Ok(previous.ips.iter().map(|ip| ip.address.addr()).collect())
}
