//! The datastore of a command: from options, a network configuration and the environment.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use datastore::config::{ClientPlace, DEFAULT_PATH, LocalConfig, ProxyVariables};
use datastore::{ConfigError, DatastoreConfig, DatastoreSettings};
use netconf::NetConf;
use netconf::list::calico_plugin;
use serde_json::Value;

use super::error::CliError;
use crate::datastore_settings;

/// Options that select the datastore.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Datastore")]
pub(super) struct ConnectionArgs {
    /// Kind of datastore [env: DATASTORE_TYPE]
    #[arg(long, global = true, value_enum, value_name = "TYPE")]
    datastore_type: Option<StoreType>,
    /// File of the local datastore [env: DATASTORE_PATH] [default: /var/lib/calico/calico.db]
    #[arg(long, global = true, value_name = "FILE", conflicts_with = "etcd_endpoints")]
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
    /// Kubeconfig of the Kubernetes API server [env: KUBECONFIG]
    #[arg(long, global = true, value_name = "FILE", conflicts_with_all = ["datastore_path", "etcd_endpoints"])]
    kubeconfig: Option<String>,
    /// Use the datastore of a network configuration, like /etc/cni/net.d/10-calico.conflist
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
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
    /// Adds the network configuration at `path`, if it exists, no option is given and the environment sets no type of
    /// datastore.
    pub(super) fn or_configuration(mut self, path: &Path, env: impl Fn(&str) -> Option<String>) -> Self {
        let chosen = ["CALICO_DATASTORE_TYPE", "DATASTORE_TYPE"];
        let chosen = chosen.into_iter().filter_map(env).any(|chosen| !chosen.is_empty());
        if self.config.is_none() && self.given_options().is_empty() && !chosen && path.exists() {
            self.config = Some(path.to_owned());
        }
        self
    }

    pub(super) fn conf(&self) -> Result<Option<NetConf>, CliError> {
        self.config.as_deref().map(read_conf).transpose()
    }

    /// Determines the datastore, for a client on a workstation. Options have precedence. Without a network
    /// configuration, an API server in the environment counts only together with a type of datastore. If no source
    /// selects a datastore, the default file is used if it exists.
    pub(super) fn resolve(&self, env: impl Fn(&str) -> Option<String>) -> Result<DatastoreConfig, CliError> {
        let conf = self.conf()?;
        let given = self.given_options();
        let chosen = given.iter().any(|(variable, _)| *variable == "DATASTORE_TYPE")
            || env("CALICO_DATASTORE_TYPE").or_else(|| env("DATASTORE_TYPE")).is_some_and(|chosen| !chosen.is_empty());
        let lookup = |name: &str| {
            let bare = name.strip_prefix("CALICO_").unwrap_or(name);
            match given.iter().find(|(variable, _)| *variable == bare) {
                Some((_, value)) => Some((*value).to_owned()),
                // An unrelated kubeconfig does not select Calico's datastore.
                None if conf.is_none() && !chosen && selects_kubernetes(bare) => None,
                None => env(name),
            }
        };
        let resolved = match &conf {
            Some(conf) => datastore_settings::with_environment(conf, None, lookup),
            None => DatastoreConfig::new(&DatastoreSettings::default(), lookup),
        };
        let resolved = resolved.or_else(|error| match error {
            ConfigError::NotConfigured if Path::new(DEFAULT_PATH).exists() => {
                let deadline = datastore::config::DEFAULT_DEADLINE;
                Ok(DatastoreConfig::Local(LocalConfig { path: DEFAULT_PATH.into(), deadline }))
            }
            ConfigError::NotConfigured => Err(CliError::NothingConfigured),
            error => Err(error.into()),
        });
        resolved.map(|config| config.placed(ClientPlace::Workstation(ProxyVariables::read(env))))
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
        ];
        options.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}

/// Returns true for variables by which upstream selects a datastore of type `kubernetes` if no type is set.
fn selects_kubernetes(variable: &str) -> bool {
    matches!(variable, "KUBECONFIG" | "K8S_API_ENDPOINT" | "KUBERNETES_SERVICE_HOST")
}

pub(super) fn describe(config: &DatastoreConfig) -> String {
    match config {
        DatastoreConfig::Local(local) => local.path.display().to_string(),
        DatastoreConfig::Etcd(etcd) => etcd.endpoints.join(","),
        DatastoreConfig::Kubernetes(kubernetes) => kubernetes.to_string(),
    }
}

/// Returns true if the first request will create the file of the embedded datastore.
pub(super) fn is_new_file(config: &DatastoreConfig) -> bool {
    matches!(config, DatastoreConfig::Local(local) if !local.path.exists())
}

/// Reads a network configuration: a plugin's, or a list that contains Calico's plugin.
fn read_conf(path: &Path) -> Result<NetConf, CliError> {
    let refuse = |reason: String| CliError::NetworkConf { path: path.display().to_string(), reason };
    let text = std::fs::read(path).map_err(|error| refuse(error.to_string()))?;
    let value: Value = serde_json::from_slice(&text).map_err(|error| refuse(error.to_string()))?;
    let plugin = calico_plugin(value).map_err(|reason| refuse(reason.into()))?;
    NetConf::parse(Value::Object(plugin).to_string().as_bytes()).map_err(|error| refuse(error.to_string()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        connection: ConnectionArgs,
    }

    fn resolve(line: &[&str], env: &[(&str, &str)]) -> Result<DatastoreConfig, CliError> {
        let line = Line::try_parse_from(std::iter::once(&"calico-ipam").chain(line)).unwrap();
        let lookup = |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string());
        line.connection.resolve(lookup)
    }

    fn name(line: &[&str], env: &[(&str, &str)]) -> String {
        describe(&resolve(line, env).unwrap())
    }

    #[test]
    fn datastore_options_override_the_environment() {
        let env = [("CALICO_DATASTORE_TYPE", "etcdv3"), ("CALICO_ETCD_ENDPOINTS", "http://env:2379")];
        assert_eq!(name(&[], &env), "http://env:2379");
        assert_eq!(name(&["--datastore-path", "/x.db"], &env), "/x.db");
        assert_eq!(name(&["--etcd-endpoints", "http://option:2379"], &env), "http://option:2379");
        assert_eq!(name(&["--datastore-type", "local"], &[("KUBECONFIG", "/k")]), DEFAULT_PATH);
        assert_eq!(name(&[], &[("DATASTORE_TYPE", "local"), ("DATASTORE_PATH", "/y.db")]), "/y.db");
    }

    #[test]
    fn command_of_a_person_follows_the_proxies_of_the_environment() {
        let env = [("HTTPS_PROXY", "http://proxy:3128")];
        let Ok(DatastoreConfig::Kubernetes(config)) = resolve(&["--kubeconfig", "/k"], &env) else { panic!() };
        let variables = ProxyVariables::read(|name| (name == "HTTPS_PROXY").then(|| env[0].1.to_owned()));
        assert_eq!(config.place, ClientPlace::Workstation(variables));
    }

    #[test]
    fn datastore_is_read_from_a_plugin_configuration_or_list() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("10-calico.conflist");
        let file = path.to_str().unwrap();
        let write = |text: &str| std::fs::write(&path, text).unwrap();

        let plugin = r#"{"type":"calico","datastore_type":"etcdv3","etcd_endpoints":"http://conf:2379"}"#;
        write(&format!(r#"{{"name":"n","cniVersion":"1.0.0","plugins":[{{"type":"bandwidth"}},{plugin}]}}"#));
        assert_eq!(name(&["--config", file], &[]), "http://conf:2379");
        assert_eq!(name(&["--config", file], &[("CALICO_ETCD_ENDPOINTS", "http://env:2379")]), "http://env:2379");
        assert_eq!(name(&["--config", file, "--datastore-path", "/x.db"], &[]), "/x.db");

        write(r#"{"name":"n","type":"bridge","ipam":{"type":"calico-ipam"},"datastore_path":"/c.db"}"#);
        assert_eq!(name(&["--config", file], &[]), "/c.db");

        for (text, problem) in [
            ("{", "EOF"),
            ("[]", "not a JSON object"),
            (r#"{"name":"n","plugins":[{"type":"bridge"}]}"#, "no plugin of the"),
            (r#"{"name":"n","type":"multus","datastore_path":"/m.db"}"#, "the configured plugin is not `calico`"),
        ] {
            write(text);
            let error = resolve(&["--config", file], &[]).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("network configuration {file}: ")) && error.contains(problem),
                "{error}"
            );
        }
        assert!(resolve(&["--config", "/no/such/file"], &[]).unwrap_err().to_string().contains("No such file"));
    }

    #[test]
    fn installed_configuration_is_used_if_no_datastore_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("10-calico.conflist");
        let config = |line: &[&str], env: &[(&str, &str)]| {
            let line = Line::try_parse_from(std::iter::once(&"calico-ipam").chain(line)).unwrap();
            let lookup = |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string());
            line.connection.or_configuration(&path, lookup).config
        };
        assert_eq!(config(&[], &[]), None);
        std::fs::write(&path, "{}").unwrap();
        assert_eq!(config(&[], &[("KUBECONFIG", "/k")]), Some(path.clone()));
        assert_eq!(config(&[], &[("DATASTORE_TYPE", "local")]), None);
        assert_eq!(config(&["--kubeconfig", "/k"], &[]), None);
        assert_eq!(config(&["--config", "/c"], &[]), Some("/c".into()));
    }

    #[test]
    fn missing_datastore_error_names_the_options() {
        let nothing = resolve(&[], &[]);
        if Path::new(DEFAULT_PATH).exists() {
            assert_eq!(describe(&nothing.unwrap()), DEFAULT_PATH);
        } else {
            assert!(nothing.unwrap_err().to_string().contains("--datastore-type local"));
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new.db");
        let connection = resolve(&["--datastore-path", path.to_str().unwrap()], &[]).unwrap();
        assert!(is_new_file(&connection));
        std::fs::write(path, "").unwrap();
        assert!(!is_new_file(&connection));
    }
}
