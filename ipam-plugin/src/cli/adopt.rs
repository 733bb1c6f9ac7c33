//! `adopt`: allocates the addresses that running workloads of this node use and that IPAM does not
//! have.

use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use datastore::config::{ClientPlace, ProxyVariables};
use datastore::{Datastore, DatastoreConfig};
use libcalico::api::{ClusterInformation, ObjectKey};
use libcalico::failure::{Failure, OrFail};
use libcalico::ipam::Statement;
use libcalico::names::interface_prefix;
use libcalico::net::Cidr;
use libcalico::store::{EndpointForm, Store, StoreError};
use libcalico::variables::Variables;
use netconf::{NetConf, printable};
use serde::Serialize;

use super::app::{App, CommandOutcome, Progress};
use super::connection::{ConnectionArgs, describe};
use super::documents::{self, Format};
use super::error::{CliError, no_node_name};
use super::trace::CONFIGURATION;
use crate::adopt::{
    AdoptOutcome, AdoptRequest, Adopted, AdoptedAddress, ClaimSource, NodeEvidence, adopt,
};
use crate::cri::ready_sandboxes;
use crate::kubernetes_api::{KubernetesApi, is_configured};
use dataplane::host_link::{HostLinks, NoHostLinks};
use node_process::{node_name, process};
use os::clock::SystemClock;

/// Advice after a refused list.
const MORE_RIGHTS: &str = "adopt lists all pods and nodes, which the plugins' account may not do: \
                           name another account with --kubeconfig, or with KUBECONFIG if the \
                           datastore is etcd, or apply deploy/adopt";
const DEFAULT_NETWORK: &str = "k8s-pod-network";

/// Allocate addresses that running pods of this node use and that IPAM does not have, as after a
/// restore
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  calico-ipam adopt --dry-run
  calico-ipam adopt --kubeconfig admin.kubeconfig
  KUBECONFIG=admin.kubeconfig calico-ipam adopt --config /etc/cni/net.d/10-calico.conflist
  calico-ipam adopt --runtime-socket /run/crio/crio.sock -o json

Run it on each node, as root, with an account that may list all pods and nodes; the plugins' account may not. On etcd,
KUBECONFIG names the API server with the pods. Without options that name a datastore, datastore, network and node are
those of /etc/cni/net.d/10-calico.conflist, if that file exists.

An address comes from a pod's status, never from annotations. Pods that still start, or that still stop, count too. The
container comes from the alias of the host interface and from the container runtime. If two pods have an address, or two
sources differ, the address is a conflict for you to solve, and stays as it is. A second run completes an interrupted
one.

Exit status: 0 if each address is allocated to its pod; 1 for a conflict or an error; 2 for invalid arguments.")]
pub(super) struct AdoptArgs {
    /// Print the changes without making them
    #[arg(long)]
    dry_run: bool,
    /// Name of this node [default: from the configuration, /var/lib/calico/nodename or the host
    /// name]
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Name of the network [default: from the configuration, else k8s-pod-network]
    #[arg(long, value_name = "NAME")]
    network: Option<String>,
    /// Socket of the container runtime [default: the usual sockets that exist]
    #[arg(long, value_name = "FILE")]
    runtime_socket: Option<PathBuf>,
}

/// The result, as JSON and YAML show it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct AdoptReport {
    node: String,
    network: String,
    dry_run: bool,
    addresses: Vec<AddressRow>,
}

#[derive(Debug, Serialize)]
struct AddressRow {
    address: IpAddr,
    /// The pod or the container that uses the address.
    user: String,
    result: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    block: Option<Cidr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// The node and the network whose addresses are adopted.
struct Place<'a> {
    node: String,
    network: String,
    conf: NetConf,
    api: KubernetesApi,
    links: &'a dyn HostLinks,
}

pub(super) fn run(
    args: &AdoptArgs,
    connection: &ConnectionArgs,
    format: Format,
    links: &dyn HostLinks,
    out: &mut dyn Write,
) -> Result<CommandOutcome, CliError> {
    let variables = process::variables();
    let connection = connection
        .clone()
        .or_configuration(Path::new(CONFIGURATION), variables);
    // The installed configuration also names network and node if options name the datastore.
    let installed = || {
        ConnectionArgs::default()
            .or_configuration(Path::new(CONFIGURATION), Variables::NONE)
            .conf()
    };
    let conf = connection.conf()?.or_else(|| installed().ok().flatten());
    let config = connection.resolve(variables)?;
    if config.missing_file().is_some() {
        let missing = format!(
            "{} does not exist, so it has no IP pools",
            describe(&config)
        );
        return Err(Failure::new(missing)
            .way_out("name the datastore, or create it with `calico-ipam init`")
            .into());
    }
    for warning in config.warnings() {
        let _ = writeln!(io::stderr(), "note: {}", printable::line(warning));
    }
    let place = Place::new(args, conf, &config, connection.kubeconfig(), links)?;
    let store = Datastore::open_uncached(&config)?;
    process::block_on(place.adopt(args, &store, format, out, &mut io::stderr()))
}

/// Does the same as [`run`] with an open datastore, and without access to the kernel.
pub(super) async fn with_app(
    args: &AdoptArgs,
    app: &mut App<'_>,
) -> Result<CommandOutcome, CliError> {
    let place = Place {
        node: args.node.clone().unwrap_or_default(),
        network: args
            .network
            .clone()
            .unwrap_or_else(|| DEFAULT_NETWORK.into()),
        conf: NetConf::default(),
        api: match app.store {
            Datastore::Kubernetes(_) => KubernetesApi::Datastore,
            Datastore::Etcd(_) | Datastore::Local(_) => KubernetesApi::Unused,
        },
        links: &NoHostLinks,
    };
    place
        .adopt(args, app.store, app.format, app.out, app.notices)
        .await
}

impl<'a> Place<'a> {
    fn new(
        args: &AdoptArgs,
        conf: Option<NetConf>,
        config: &DatastoreConfig,
        kubeconfig: Option<&str>,
        links: &'a dyn HostLinks,
    ) -> Result<Self, CliError> {
        let conf = conf.unwrap_or_default();
        let node = match &args.node {
            Some(name) => name.clone(),
            None => node_name::from_conf(&conf).map_err(no_node_name)?,
        };
        let of_conf = Some(conf.name.clone()).filter(|name| !name.is_empty());
        let network = args
            .network
            .clone()
            .or(of_conf)
            .unwrap_or_else(|| DEFAULT_NETWORK.into());
        let variables = process::variables();
        // The account in the configuration is the plugins', which may not list pods.
        let account = kubeconfig
            .map(str::to_owned)
            .or_else(|| variables.non_empty("CALICO_KUBECONFIG"));
        let account = account.or_else(|| variables.non_empty("KUBECONFIG"));
        let api = match config {
            DatastoreConfig::Kubernetes(_) => KubernetesApi::Datastore,
            DatastoreConfig::Etcd(_) | DatastoreConfig::Local(_)
                if account.is_none() && !is_configured(&conf, config) =>
            {
                KubernetesApi::Unused
            }
            DatastoreConfig::Etcd(_) | DatastoreConfig::Local(_) => {
                let with_account = |name: &str| match name {
                    "CALICO_KUBECONFIG" => account.clone(),
                    _ => variables.get(name),
                };
                let person = ClientPlace::Workstation(ProxyVariables::read(variables));
                KubernetesApi::open_separate(&conf, person, Variables::new(&with_account))
                    .or_fail("cannot use the API server of the pods")?
            }
        };
        Ok(Place {
            node,
            network,
            conf,
            api,
            links,
        })
    }

    async fn adopt(
        &self,
        args: &AdoptArgs,
        store: &Datastore,
        format: Format,
        out: &mut dyn Write,
        notices: &mut dyn Write,
    ) -> Result<CommandOutcome, CliError> {
        let mut notice = |text: &str| _ = writeln!(notices, "note: {}", printable::line(text));
        let locked = store
            .get::<ClusterInformation>(&ObjectKey::global("default"))
            .await;
        if locked.is_ok_and(|cluster| cluster.value.spec.datastore_ready == Some(false)) {
            notice(
                "the datastore is locked (datastoreReady: false); addresses are adopted all the \
                 same",
            );
        }
        let api = self.api.reached(store);
        let prefixes = process::felix_interface_prefix();
        let progress = Progress::new("adopting addresses", 0);
        let sandboxes = match ready_sandboxes(args.runtime_socket.as_deref()).await {
            Ok(sandboxes) => Statement::Known(sandboxes),
            Err(error) => Statement::Unknown(error.to_string()),
        };
        let request = AdoptRequest {
            node: &self.node,
            source: match store.endpoint_form() {
                EndpointForm::PodAnnotations => ClaimSource::Pods,
                EndpointForm::Object => ClaimSource::Endpoints,
            },
            evidence: NodeEvidence {
                network: &self.network,
                interface_prefix: interface_prefix(prefixes.as_deref()),
                links: self.links,
                sandboxes,
            },
            lock_file: Some(Path::new(&self.conf.node.ipam_lock_file)).filter(|_| !args.dry_run),
            dry_run: args.dry_run,
        };
        let adopted = adopt(store, api, &SystemClock::start(), &request).await;
        drop(progress);
        let Adopted {
            addresses,
            notices: problems,
        } = adopted.map_err(|error| match error {
            StoreError::Unauthorized { .. } | StoreError::Forbidden { .. } => {
                CliError::from(Failure::new(error).way_out(MORE_RIGHTS))
            }
            other => other.into(),
        })?;
        problems.iter().for_each(|problem| notice(problem));
        if addresses.is_empty() {
            notice(&format!(
                "no pod of node {} has an address; --node names another node",
                self.node
            ));
        }
        let rows = addresses
            .into_iter()
            .map(|adopted| AddressRow::new(adopted, args.dry_run))
            .collect();
        let (node, network, dry_run) = (self.node.clone(), self.network.clone(), args.dry_run);
        AdoptReport {
            node,
            network,
            dry_run,
            addresses: rows,
        }
        .show(format, out)
    }
}

const CONFLICT: &str = "conflict";

impl AddressRow {
    fn new(adopted: AdoptedAddress, dry_run: bool) -> Self {
        let AdoptedAddress {
            address,
            claimant,
            outcome,
        } = adopted;
        let (result, block, reason) = match outcome {
            AdoptOutcome::Adopted(block) if dry_run => ("would be adopted", Some(block), None),
            AdoptOutcome::Adopted(block) => ("adopted", Some(block), None),
            AdoptOutcome::Held(block) => ("held", Some(block), None),
            AdoptOutcome::Conflict(reason) => (CONFLICT, None, Some(reason.to_string())),
        };
        AddressRow {
            address,
            user: claimant.to_string(),
            result,
            block,
            reason,
        }
    }
}

impl AdoptReport {
    fn show(&self, format: Format, out: &mut dyn Write) -> Result<CommandOutcome, CliError> {
        let is_conflict = |row: &&AddressRow| row.result == CONFLICT;
        let conflicts = self.addresses.iter().filter(is_conflict).count();
        if !documents::print_document(format, out, self)? {
            self.print(conflicts, out)?;
        }
        Ok(if conflicts == 0 {
            CommandOutcome::Success
        } else {
            CommandOutcome::Findings
        })
    }

    fn print(&self, conflicts: usize, out: &mut dyn Write) -> Result<(), CliError> {
        let mut print_line =
            |line: String| writeln!(out, "{}", printable::line(&line)).map_err(CliError::Output);
        for AddressRow {
            address,
            user,
            result,
            block,
            reason,
        } in &self.addresses
        {
            let block = block
                .map(|block| format!(", block {block}"))
                .unwrap_or_default();
            let reason = reason
                .as_ref()
                .map(|reason| format!(": {reason}"))
                .unwrap_or_default();
            print_line(format!("{address} ({user}{block}): {result}{reason}"))?;
        }
        let total = self.addresses.len();
        print_line(format!(
            "{total} addresses of node {}, {conflicts} conflicts",
            self.node
        ))
    }
}

#[cfg(test)]
mod tests {
    use crate::cli::testing::Shell;

    #[test]
    fn adopt_of_an_endpoint_without_interface_is_a_conflict() {
        let shell = Shell::with_pool();
        shell.endpoint("web", "10.0.0.9");
        let line = |node| ["adopt", "--node", node, "--runtime-socket", "/nowhere.sock"];
        let text = shell.wrong(&line("node1"));
        assert!(
            text.starts_with("10.0.0.9 (pod default/web): conflict: the container is unknown: "),
            "{text}"
        );
        assert!(
            text.ends_with("\n1 addresses of node node1, 1 conflicts\n"),
            "{text}"
        );
        let report = shell.json(&line("node1"));
        assert_eq!(report["dryRun"], false);
        assert_eq!(report["addresses"][0]["result"], "conflict");
        assert_eq!(
            shell.ok(&line("node2")),
            "0 addresses of node node2, 0 conflicts\n"
        );
        assert!(shell.blocks().is_empty());
    }
}
