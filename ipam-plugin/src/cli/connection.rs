//! The datastore of a command: from options, a network configuration and the environment, or from a
//! configuration file of calicoctl.

mod calicoctl_config;

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use datastore::config::{ClientPlace, DEFAULT_PATH, LocalConfig, ProxyVariables};
use datastore::{ConfigError, DatastoreConfig, DatastoreSettings};
use libcalico::failure::{Failure, OrFail};
use libcalico::variables::Variables;
use netconf::NetConf;
use netconf::list::calico_plugin;
use serde_json::Value;

use super::error::CliError;
use super::input_file::{self, MAX_CONFIGURATION};
use crate::datastore_settings;

/// Options that select the datastore.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Datastore")]
pub(super) struct ConnectionArgs {
    /// Kind of datastore [env: DATASTORE_TYPE]
    #[arg(long, global = true, value_enum, value_name = "TYPE")]
    datastore_type: Option<StoreType>,
    /// File of the local datastore [env: DATASTORE_PATH] [default: /var/lib/calico/calico.db]
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        conflicts_with = "etcd_endpoints"
    )]
    datastore_path: Option<String>,
    /// URLs of etcd, separated by commas [env: ETCD_ENDPOINTS]
    #[arg(long, global = true, value_name = "URLS")]
    etcd_endpoints: Option<String>,
    /// CA certificates for verifying etcd's certificate [env: ETCD_CA_CERT_FILE]
    #[arg(long, global = true, value_name = "FILE")]
    etcd_ca_cert_file: Option<String>,
    /// Client certificate for etcd [env: ETCD_CERT_FILE]
    #[arg(long, global = true, value_name = "FILE")]
    etcd_cert_file: Option<String>,
    /// Key of the client certificate [env: ETCD_KEY_FILE]
    #[arg(long, global = true, value_name = "FILE")]
    etcd_key_file: Option<String>,
    /// Kubeconfig of the Kubernetes API server; beside --etcd-endpoints, of that with the Services
    /// [env: KUBECONFIG]
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        conflicts_with = "datastore_path"
    )]
    kubeconfig: Option<String>,
    /// Context of the kubeconfig [env: K8S_CURRENT_CONTEXT]
    #[arg(
        long, global = true, value_name = "NAME",
        conflicts_with_all = ["datastore_path", "etcd_endpoints"]
    )]
    context: Option<String>,
    /// Use the datastore of a network configuration, like /etc/cni/net.d/10-calico.conflist
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Use the datastore of a configuration file of calicoctl, and none of the variables above
    #[arg(
        long, global = true, value_name = "FILE", conflicts_with_all = [
            "datastore_type", "datastore_path", "etcd_endpoints", "etcd_ca_cert_file",
            "etcd_cert_file",
            "etcd_key_file", "kubeconfig", "config",
        ]
    )]
    calicoctl_config: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum StoreType {
    /// A file on this node
    Local,
    /// An etcd cluster
    Etcdv3,
    /// A Kubernetes API server
    Kubernetes,
}

impl ConnectionArgs {
    /// Adds the network configuration at `path`, if it exists, no option is given and the
    /// environment sets no type of datastore.
    pub(super) fn or_configuration(mut self, path: &Path, variables: Variables<'_>) -> Self {
        let is_named = self.config.is_some()
            || self.calicoctl_config.is_some()
            || !self.given_options().is_empty();
        if !is_named && !is_chosen(variables) && path.exists() {
            self.config = Some(path.to_owned());
        }
        self
    }

    pub(super) fn conf(&self) -> Result<Option<NetConf>, CliError> {
        Ok(self.config.as_deref().map(read_conf).transpose()?)
    }

    /// Determines the datastore, for a client on a workstation.
    pub(super) fn resolve(&self, variables: Variables<'_>) -> Result<DatastoreConfig, CliError> {
        let config = match &self.calicoctl_config {
            Some(path) => calicoctl_config::read(path, self.context.as_deref(), variables)?,
            None => self.resolve_sources(variables)?,
        };
        match &config {
            DatastoreConfig::Etcd(_) | DatastoreConfig::Local(_) if self.context.is_some() => {
                let datastore = describe(&config);
                let failure = Failure::new(format_args!(
                    "--context is for an API server, but the datastore is {datastore}"
                ));
                return Err(failure
                    .way_out("remove --context, or name the API server with --kubeconfig")
                    .into());
            }
            DatastoreConfig::Etcd(_)
            | DatastoreConfig::Local(_)
            | DatastoreConfig::Kubernetes(_) => {}
        }
        // A file of calicoctl has no setting for proxies, so those of the environment count with
        // it, too.
        Ok(config.placed(ClientPlace::Workstation(ProxyVariables::read(variables))))
    }

    /// Determines the datastore from options, the network configuration and the environment.
    /// Options have precedence. Without a network configuration, an API server in the environment
    /// counts only together with a type of datastore or a context. If no source selects a
    /// datastore, the default file is used if it exists.
    fn resolve_sources(&self, variables: Variables<'_>) -> Result<DatastoreConfig, CliError> {
        let conf = self.conf()?;
        let mut given = self.given_options();
        let mut chosen = given
            .iter()
            .any(|(variable, _)| *variable == "DATASTORE_TYPE")
            || is_chosen(variables);
        if !chosen && conf.is_none() && self.context.is_some() {
            // Only an API server has contexts.
            given.push(("DATASTORE_TYPE", "kubernetes"));
            chosen = true;
        }
        let lookup = |name: &str| {
            let bare = name.strip_prefix("CALICO_").unwrap_or(name);
            match given.iter().find(|(variable, _)| *variable == bare) {
                Some((_, value)) => Some((*value).to_owned()),
                // An unrelated kubeconfig does not select Calico's datastore.
                None if conf.is_none() && !chosen && selects_kubernetes(bare) => None,
                None => variables.get(name).or_else(|| unlimited(name)),
            }
        };
        let lookup = Variables::new(&lookup);
        let resolved = match &conf {
            Some(conf) => datastore_settings::with_environment(conf, None, lookup),
            None => DatastoreConfig::new(&DatastoreSettings::default(), lookup),
        };
        resolved.or_else(|error| match error {
            ConfigError::NotConfigured if Path::new(DEFAULT_PATH).exists() => {
                let deadline = datastore::config::DEFAULT_DEADLINE;
                Ok(DatastoreConfig::Local(LocalConfig {
                    path: DEFAULT_PATH.into(),
                    deadline,
                }))
            }
            ConfigError::NotConfigured => Err(nothing_configured().into()),
            error => Err(error.into()),
        })
    }

    /// Returns the kubeconfig that an option names.
    pub(super) fn kubeconfig(&self) -> Option<&str> {
        self.kubeconfig.as_deref()
    }

    /// Returns the options as the environment variables that they replace.
    fn given_options(&self) -> Vec<(&'static str, &str)> {
        let datastore_type = match self.datastore_type {
            Some(StoreType::Local) => Some("local"),
            Some(StoreType::Etcdv3) => Some("etcdv3"),
            Some(StoreType::Kubernetes) => Some("kubernetes"),
            None if self.datastore_path.is_some() => Some("local"),
            None if self.etcd_endpoints.is_some() => Some("etcdv3"),
            None if self.kubeconfig.is_some() => Some("kubernetes"),
            None => None,
        };
        let options = [
            ("DATASTORE_TYPE", datastore_type),
            ("DATASTORE_PATH", self.datastore_path.as_deref()),
            ("ETCD_ENDPOINTS", self.etcd_endpoints.as_deref()),
            ("ETCD_CA_CERT_FILE", self.etcd_ca_cert_file.as_deref()),
            ("ETCD_CERT_FILE", self.etcd_cert_file.as_deref()),
            ("ETCD_KEY_FILE", self.etcd_key_file.as_deref()),
            ("KUBECONFIG", self.kubeconfig.as_deref()),
            ("K8S_CURRENT_CONTEXT", self.context.as_deref()),
        ];
        options
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .collect()
    }
}

/// Returns a command's own value of `variable`, which has the lowest precedence: no limit of
/// requests per second. The default limit (DS-122) is for nodes. A command has few requests under
/// way at once, and waits after a 429.
pub(super) fn unlimited(variable: &str) -> Option<String> {
    (variable == "K8S_CLIENT_QPS").then(|| "-1".to_owned())
}

/// Returns true if the environment sets the type of the datastore.
fn is_chosen(variables: Variables<'_>) -> bool {
    variables
        .get("CALICO_DATASTORE_TYPE")
        .or_else(|| variables.get("DATASTORE_TYPE"))
        .is_some_and(|chosen| !chosen.is_empty())
}

/// Returns true for variables by which upstream selects a datastore of type `kubernetes` if no type
/// is set.
fn selects_kubernetes(variable: &str) -> bool {
    matches!(
        variable,
        "KUBECONFIG" | "K8S_API_ENDPOINT" | "KUBERNETES_SERVICE_HOST"
    )
}

pub(super) fn describe(config: &DatastoreConfig) -> String {
    match config {
        DatastoreConfig::Local(local) => local.path.display().to_string(),
        DatastoreConfig::Etcd(etcd) => etcd.endpoints.join(","),
        DatastoreConfig::Kubernetes(kubernetes) => kubernetes.to_string(),
    }
}

/// Reads a network configuration: a plugin's, or a list that contains Calico's plugin.
fn read_conf(path: &Path) -> Result<NetConf, Failure> {
    let conf = format!("network configuration {}", path.display());
    let text = input_file::bytes(path, MAX_CONFIGURATION).or_fail(&conf)?;
    let value: Value = serde_json::from_slice(&text).or_fail(&conf)?;
    let plugin = calico_plugin(value).or_fail(&conf)?;
    NetConf::parse(Value::Object(plugin).to_string().as_bytes()).or_fail(&conf)
}

fn nothing_configured() -> Failure {
    Failure::new(format_args!(
        "no datastore is configured and {DEFAULT_PATH} does not exist"
    ))
    .way_out(
        "name one: `--datastore-type local` (creates that file), `--datastore-path FILE`, \
         `--etcd-endpoints URL`, `--kubeconfig FILE`, or `--config \
         /etc/cni/net.d/10-calico.conflist`; DATASTORE_TYPE, DATASTORE_PATH, ETCD_ENDPOINTS and, \
         beside DATASTORE_TYPE=kubernetes, KUBECONFIG in the environment do the same",
    )
}

#[cfg(test)]
mod tests;
