//! [`ServicesApi`]: the API server that has the Services.

use datastore::config::{ClientPlace, ProxyVariables};
use datastore::{Datastore, DatastoreConfig, DatastoreSettings, KubernetesConfig};
use libcalico::variables::Variables;

use super::connection::{ConnectionArgs, unlimited};
use crate::datastore_settings;
use crate::kubernetes_api;

/// The API server that has the Services, where the datastore is etcd or a file.
#[derive(Debug)]
pub(super) enum ServicesApi {
    /// The datastore is the API server, or no setting names one.
    NotConfigured,
    /// The settings of the API server are invalid, for this reason.
    Invalid(String),
    /// The API server, to which no request was sent yet.
    Separate(Box<Datastore>),
}

impl ServicesApi {
    /// Returns the API server that `--kubeconfig`, the network configuration or `KUBECONFIG` names
    /// beside the datastore `config`.
    pub(super) fn of(
        connection: &ConnectionArgs,
        config: &DatastoreConfig,
        variables: Variables<'_>,
    ) -> Self {
        match config {
            DatastoreConfig::Kubernetes(_) => return ServicesApi::NotConfigured,
            DatastoreConfig::Etcd(_) | DatastoreConfig::Local(_) => {}
        }
        match Self::settings(connection, config, variables) {
            Ok(None) => ServicesApi::NotConfigured,
            Ok(Some(api)) => {
                let place = ClientPlace::Workstation(ProxyVariables::read(variables));
                match Datastore::open(&DatastoreConfig::Kubernetes(Box::new(api)).placed(place)) {
                    Ok(api) => ServicesApi::Separate(Box::new(api)),
                    Err(error) => ServicesApi::Invalid(error.to_string()),
                }
            }
            Err(reason) => ServicesApi::Invalid(reason.to_string()),
        }
    }

    fn settings(
        connection: &ConnectionArgs,
        config: &DatastoreConfig,
        variables: Variables<'_>,
    ) -> Result<Option<KubernetesConfig>, Box<dyn std::error::Error>> {
        let given = connection.kubeconfig();
        let lookup = |name: &str| match given {
            Some(file) if name.strip_prefix("CALICO_").unwrap_or(name) == "KUBECONFIG" => {
                Some(file.to_owned())
            }
            _ => variables.get(name).or_else(|| unlimited(name)),
        };
        let lookup = Variables::new(&lookup);
        let is_set = |name: &str| lookup.non_empty(name).is_some();
        let is_named = is_set("KUBECONFIG") || is_set("CALICO_KUBECONFIG");
        match connection.conf()? {
            Some(conf) if is_named || kubernetes_api::is_configured(&conf, config) => Ok(Some(
                datastore_settings::separate_kubernetes(&conf, None, lookup)?,
            )),
            None if is_named => Ok(Some(KubernetesConfig::for_pods(
                &DatastoreSettings::default(),
                lookup,
            )?)),
            _ => Ok(None),
        }
    }
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

    /// Returns the kubeconfig of the API server of the Services.
    fn kubeconfig(line: &[&str], env: &[(&str, &str)]) -> Option<String> {
        let line = Line::try_parse_from(std::iter::once(&"calico-ipam").chain(line)).unwrap();
        let lookup = |name: &str| {
            env.iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| value.to_string())
        };
        let variables = Variables::new(&lookup);
        let config = line.connection.resolve(variables).unwrap();
        let settings = ServicesApi::settings(&line.connection, &config, variables).unwrap()?;
        Some(
            settings
                .kubeconfig
                .iter()
                .map(|file| file.display().to_string())
                .collect(),
        )
    }

    #[test]
    fn services_are_read_from_the_api_server_beside_the_datastore() {
        let etcd = ["--etcd-endpoints", "http://127.0.0.1:2379"];
        assert_eq!(kubeconfig(&etcd, &[]), None);
        assert_eq!(
            kubeconfig(&etcd, &[("KUBECONFIG", "/env")]).as_deref(),
            Some("/env")
        );
        let option = [etcd[0], etcd[1], "--kubeconfig", "/option"];
        assert_eq!(
            kubeconfig(&option, &[("KUBECONFIG", "/env")]).as_deref(),
            Some("/option")
        );
        let local = ["--datastore-path", "/x.db"];
        assert_eq!(
            kubeconfig(&local, &[("KUBECONFIG", "/env")]).as_deref(),
            Some("/env")
        );

        let dir = tempfile::tempdir().unwrap();
        let conf = |plugin: &str| {
            let path = dir.path().join("10-calico.conf");
            std::fs::write(&path, plugin).unwrap();
            path.display().to_string()
        };
        let named = r#"{"name":"n","type":"calico","datastore_path":"/x.db","kubernetes":{"kubeconfig":"/conf"}}"#;
        assert_eq!(
            kubeconfig(&["--config", &conf(named)], &[]).as_deref(),
            Some("/conf")
        );
        assert_eq!(
            kubeconfig(
                &["--config", &conf(named)],
                &[("CALICO_KUBECONFIG", "/env")]
            )
            .as_deref(),
            Some("/env")
        );
        let alone = r#"{"name":"n","type":"calico","datastore_path":"/x.db"}"#;
        assert_eq!(kubeconfig(&["--config", &conf(alone)], &[]), None);
    }

    #[test]
    fn services_of_the_datastore_itself_need_no_other_api_server() {
        let lookup = |name: &str| (name == "KUBECONFIG").then(|| "/k".to_owned());
        let line = Line::try_parse_from(["calico-ipam", "--datastore-type", "kubernetes"]).unwrap();
        let variables = Variables::new(&lookup);
        let config = line.connection.resolve(variables).unwrap();
        assert!(matches!(
            ServicesApi::of(&line.connection, &config, variables),
            ServicesApi::NotConfigured
        ));
    }
}
