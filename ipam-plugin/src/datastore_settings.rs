//! Determines the datastore of a network configuration.

use std::time::Duration;

use datastore::{ConfigError, DatastoreConfig, DatastoreSettings, KubernetesConfig};
use libcalico::variables::Variables;
use netconf::conf::{ApiGroup, DatastoreType};
use netconf::{CniError, Code, NetConf};
use node_process::process;

/// Returns the datastore that `conf` and the environment describe, and logs settings without
/// effect. `deadline` limits a request; `None` applies the datastore's default.
///
/// # Errors
/// Returns code 7 if no usable datastore is configured.
pub fn from_conf(conf: &NetConf, deadline: Option<Duration>) -> Result<DatastoreConfig, CniError> {
    let config = with_environment(conf, deadline, process::variables())
        .map_err(|error| CniError::new(Code::INVALID_CONFIG, error.to_string()))?;
    for warning in config.warnings() {
        tracing::warn!(%warning, "a setting of the datastore has no effect");
    }
    Ok(config)
}

/// Returns the API server for Kubernetes objects where the datastore is another one (CNI-69).
///
/// # Errors
/// Returns code 7 if a setting is invalid.
pub fn separate_kubernetes(
    conf: &NetConf,
    deadline: Option<Duration>,
    variables: Variables<'_>,
) -> Result<KubernetesConfig, CniError> {
    KubernetesConfig::for_pods(&settings(conf, deadline), variables)
        .map_err(|error| CniError::new(Code::INVALID_CONFIG, error.to_string()))
}

/// Does the same as [`from_conf`] with these environment variables.
///
/// # Errors
/// Returns an error if no usable datastore is configured.
pub fn with_environment(
    conf: &NetConf,
    deadline: Option<Duration>,
    variables: Variables<'_>,
) -> Result<DatastoreConfig, ConfigError> {
    let datastore = &conf.datastore;
    let (user, password) = (&datastore.etcd_username, datastore.etcd_password.reveal());
    let with_conf = |name: &str| match name {
        "ETCD_USERNAME" if !user.is_empty() => Some(user.clone()),
        "ETCD_PASSWORD" if !password.is_empty() => Some(password.to_owned()),
        _ => variables.get(name),
    };
    DatastoreConfig::new(&settings(conf, deadline), Variables::new(&with_conf))
}

fn settings(conf: &NetConf, deadline: Option<Duration>) -> DatastoreSettings {
    let datastore = &conf.datastore;
    let datastore_type = match datastore.datastore_type {
        None => "",
        Some(DatastoreType::Kubernetes) => "kubernetes",
        Some(DatastoreType::Etcdv3) => "etcdv3",
        Some(DatastoreType::Local) => "local",
    };
    DatastoreSettings {
        datastore_type: datastore_type.into(),
        datastore_path: datastore.datastore_path.clone(),
        etcd_endpoints: datastore.etcd_endpoints.clone(),
        etcd_discovery_srv: datastore.etcd_discovery_srv.clone(),
        etcd_ca_cert_file: datastore.etcd_ca_cert_file.clone(),
        etcd_cert_file: datastore.etcd_cert_file.clone(),
        etcd_key_file: datastore.etcd_key_file.clone(),
        etcd_ca_cert: datastore.etcd_ca_cert.clone(),
        etcd_cert: datastore.etcd_cert.clone(),
        etcd_key: datastore.etcd_key.reveal().to_owned(),
        kubeconfig: conf.kubernetes.kubeconfig.clone(),
        k8s_api_root: first([&conf.kubernetes.k8s_api_root, &conf.policy.k8s_api_root]),
        k8s_auth_token: conf.policy.k8s_auth_token.reveal().to_owned(),
        k8s_client_certificate: conf.policy.k8s_client_certificate.clone(),
        k8s_client_key: conf.policy.k8s_client_key.clone(),
        k8s_certificate_authority: conf.policy.k8s_certificate_authority.clone(),
        calico_api_group: match datastore.calico_api_group {
            None => String::new(),
            Some(ApiGroup::CrdV1) => "crd.projectcalico.org/v1".into(),
            Some(ApiGroup::V3) => "projectcalico.org/v3".into(),
        },
        qps: datastore.qps,
        burst: datastore.burst,
        deadline,
    }
}

fn first(texts: [&String; 2]) -> String {
    texts
        .into_iter()
        .find(|text| !text.is_empty())
        .cloned()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> NetConf {
        NetConf::parse(json.as_bytes()).unwrap()
    }

    #[test]
    fn local_and_etcd_settings_are_parsed_and_missing_settings_rejected() {
        let conf = parse(r#"{"name":"n","datastore_type":"local","datastore_path":"/tmp/x.db"}"#);
        let Ok(DatastoreConfig::Local(local)) = with_environment(&conf, None, Variables::NONE)
        else {
            panic!()
        };
        assert_eq!(local.path.to_str(), Some("/tmp/x.db"));

        let conf = parse(
            r#"{"name":"n","etcd_endpoints":"http://127.0.0.1:2379","etcd_username":"u","etcd_password":"p"}"#,
        );
        let Ok(DatastoreConfig::Etcd(etcd)) =
            with_environment(&conf, Some(Duration::from_secs(2)), Variables::NONE)
        else {
            panic!()
        };
        assert_eq!(etcd.endpoints, ["http://127.0.0.1:2379"]);
        assert_eq!(etcd.credentials, Some(("u".into(), "p".into())));
        assert_eq!(etcd.deadline, Duration::from_secs(2));

        let error = with_environment(&parse(r#"{"name":"n"}"#), None, Variables::NONE).unwrap_err();
        assert_eq!(error, ConfigError::NotConfigured);
    }

    #[test]
    fn environment_fills_unset_options_and_prefixed_variables_win() {
        let conf = parse(r#"{"name":"n","etcd_endpoints":"http://conf:2379"}"#);
        let endpoints = |env: &[(&str, &str)]| {
            let lookup = |name: &str| {
                env.iter()
                    .find(|(key, _)| *key == name)
                    .map(|(_, value)| value.to_string())
            };
            match with_environment(&conf, None, Variables::new(&lookup)) {
                Ok(DatastoreConfig::Etcd(etcd)) => etcd.endpoints,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(
            endpoints(&[("ETCD_ENDPOINTS", "http://env:2379")]),
            ["http://conf:2379"]
        );
        assert_eq!(
            endpoints(&[("CALICO_ETCD_ENDPOINTS", "http://env:2379")]),
            ["http://env:2379"]
        );
    }
}
