//! `trace`: shows the data about one pod on this node.

mod log_lines;
mod report;

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use datastore::Datastore;
use libcalico::names::{interface_prefix, pod_interface};
use netconf::NetConf;

use self::log_lines::PodLogLines;
use self::report::{StoredObjects, Trace, UnreadPart};
use super::app::{App, CommandOutcome, Progress};
use super::connection::{ConnectionArgs, describe};
use super::documents::{self, Format};
use super::error::CliError;
use dataplane::host_link::{HostLinks, NoHostLinks};
use node_process::{node_name, process};

/// The configuration that the installer writes by default.
pub(super) const CONFIGURATION: &str = "/etc/cni/net.d/10-calico.conflist";

const LOG_FILE: &str = "/var/log/calico/cni/cni.log";

/// Show log lines, endpoint, addresses, interface and routes of one pod on this node
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  calico-ipam trace web-0
  calico-ipam trace prod/web-0 -o json
  calico-ipam trace web-0 -n prod --log-file /var/log/calico/cni/cni.log

Without options that name a datastore, datastore, node and log file are those of /etc/cni/net.d/10-calico.conflist,
if that file exists. Rotated log files are read too, compressed ones included.

Exit status: 0 if any data of the pod was found; 1 if none was found, or if a part cannot be read: the output then names
the part and the reason, and shows the other parts; 2 for invalid arguments.")]
pub(super) struct TraceArgs {
    /// The pod
    #[arg(value_name = "[NAMESPACE/]POD", value_parser = pod_name)]
    pod: String,
    /// Namespace of the pod if POD does not contain one
    #[arg(short, long, value_name = "NAME", default_value = "default")]
    namespace: String,
    /// Name of the node [default: from the configuration, /var/lib/calico/nodename or the host
    /// name]
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// The plugins' log file [default: from the configuration, else /var/log/calico/cni/cni.log]
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
    /// Maximum number of log lines to show; the latest lines are shown
    #[arg(long, value_name = "NUMBER", default_value_t = 1000)]
    lines: usize,
}

struct Places<'a> {
    node: String,
    log_file: PathBuf,
    links: &'a dyn HostLinks,
}

#[derive(Debug, Clone)]
struct DatastoreUnusable(String);

impl DatastoreUnusable {
    fn new(error: impl ToString) -> Self {
        DatastoreUnusable(error.to_string())
    }
}

/// Refuses an empty name, which would match all pods or namespaces.
fn pod_name(text: &str) -> Result<String, &'static str> {
    if text.split('/').any(str::is_empty) {
        Err("write POD or NAMESPACE/POD")
    } else {
        Ok(text.to_owned())
    }
}

pub(super) fn run(
    args: &TraceArgs,
    connection: &ConnectionArgs,
    format: Format,
    links: &dyn HostLinks,
    out: &mut dyn Write,
) -> Result<CommandOutcome, CliError> {
    let connection = connection
        .clone()
        .or_configuration(Path::new(CONFIGURATION), process::variables());
    let conf = connection.conf().map_err(DatastoreUnusable::new);
    let places = Places::new(args, conf.as_ref().ok().and_then(Option::as_ref), links);
    let store = conf.and_then(|_| {
        let config = connection
            .resolve(process::variables())
            .map_err(DatastoreUnusable::new)?;
        if config.missing_file().is_some() {
            return Err(DatastoreUnusable(format!(
                "{} does not exist",
                describe(&config)
            )));
        }
        Datastore::open_uncached(&config).map_err(DatastoreUnusable::new)
    });
    process::block_on(read_trace(
        args,
        store.as_ref().map_err(Clone::clone),
        &places,
    ))
    .show(format, out)
}

/// Does the same as [`run`] with an open datastore, and without access to the kernel.
pub(super) async fn with_app(
    args: &TraceArgs,
    app: &mut App<'_>,
) -> Result<CommandOutcome, CliError> {
    let places = Places::new(args, None, &NoHostLinks);
    read_trace(args, Ok(app.store), &places)
        .await
        .show(app.format, app.out)
}

impl<'a> Places<'a> {
    fn new(args: &TraceArgs, conf: Option<&NetConf>, links: &'a dyn HostLinks) -> Self {
        let node = args.node.clone().unwrap_or_else(|| {
            let name = conf.map_or_else(
                || node_name::from_conf(&NetConf::default()),
                node_name::from_conf,
            );
            name.unwrap_or_default()
        });
        let of_conf = conf
            .map(|conf| conf.log.log_file_path.as_str())
            .filter(|path| !path.is_empty());
        let log_file = args
            .log_file
            .clone()
            .unwrap_or_else(|| of_conf.unwrap_or(LOG_FILE).into());
        Places {
            node,
            log_file,
            links,
        }
    }
}

async fn read_trace(
    args: &TraceArgs,
    store: Result<&Datastore, DatastoreUnusable>,
    places: &Places<'_>,
) -> Trace {
    let _progress = Progress::new("reading the trace", 0);
    let (namespace, pod) = args
        .pod
        .split_once('/')
        .unwrap_or((&args.namespace, &args.pod));
    let mut missing = Vec::new();
    let mut add_missing = |part, reason: String| missing.push(UnreadPart { part, reason });

    let mut log_lines = PodLogLines::new(namespace, pod, args.lines);
    for (file, error) in log_lines.read(&places.log_file) {
        add_missing("log", format!("{}: {error}", file.display()));
    }
    let stored = match store {
        Ok(store) => {
            let read = StoredObjects::read(
                store,
                &places.node,
                (namespace, pod),
                log_lines.containers.clone(),
            )
            .await;
            read.map_err(|error| error.to_string())
        }
        Err(DatastoreUnusable(reason)) => Err(reason),
    };
    let stored = stored.unwrap_or_else(|reason| {
        add_missing("datastore", reason);
        StoredObjects::default()
    });
    let prefixes = process::felix_interface_prefix();
    let recorded = stored
        .endpoint
        .as_ref()
        .map(|endpoint| endpoint.interface.clone())
        .filter(|name| !name.is_empty());
    let usual = || pod_interface(interface_prefix(prefixes.as_deref()), namespace, pod);
    let interface_name = recorded.unwrap_or_else(usual);
    let interface = places.links.find(&interface_name).unwrap_or_else(|reason| {
        add_missing("interface", reason.to_string());
        None
    });
    let (log, log_left_out) = log_lines.into_lines();
    Trace {
        namespace: namespace.into(),
        pod: pod.into(),
        node: places.node.clone(),
        endpoint: stored.endpoint,
        addresses: stored.addresses,
        interface_name,
        interface,
        log_file: places.log_file.clone(),
        log,
        log_left_out,
        missing,
    }
}

impl Trace {
    fn show(&self, format: Format, out: &mut dyn Write) -> Result<CommandOutcome, CliError> {
        if !documents::print_document(format, out, self)? {
            self.print(out)?;
        }
        let has_found = self.endpoint.is_some()
            || !self.addresses.is_empty()
            || self.interface.is_some()
            || !self.log.is_empty();
        Ok(if self.missing.is_empty() && has_found {
            CommandOutcome::Success
        } else {
            CommandOutcome::Findings
        })
    }
}

#[cfg(test)]
mod tests;
