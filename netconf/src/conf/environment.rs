//! The datastore settings of the environment, applied to the configuration.

use libcalico::variables::Variables;

use super::datastore::{ApiGroup, DatastoreConf, DatastoreType, Secret};
use super::net_conf::NetConf;
use crate::{CniError, Code};

type EnvSetting = (&'static str, fn(&mut DatastoreConf) -> &mut String);

const SETTINGS: [EnvSetting; 7] = [
    ("DATASTORE_PATH", |conf| &mut conf.datastore_path),
    ("ETCD_ENDPOINTS", |conf| &mut conf.etcd_endpoints),
    ("ETCD_DISCOVERY_SRV", |conf| &mut conf.etcd_discovery_srv),
    ("ETCD_USERNAME", |conf| &mut conf.etcd_username),
    ("ETCD_KEY_FILE", |conf| &mut conf.etcd_key_file),
    ("ETCD_CERT_FILE", |conf| &mut conf.etcd_cert_file),
    ("ETCD_CA_CERT_FILE", |conf| &mut conf.etcd_ca_cert_file),
];

impl NetConf {
    /// Returns the configuration with the datastore settings of the environment applied. For a
    /// setting `X`, the variable `CALICO_X` overrides the configuration if it is set, even to the
    /// empty string, and the configuration overrides `X` (DS-11).
    ///
    /// The variables of Kubernetes clients, such as `KUBECONFIG`, are not applied here, because a
    /// kubeconfig in the configuration makes the IPAM plugin look up the pod's namespace (IPAM-36).
    ///
    /// # Errors
    /// Code 4 for an unknown type of datastore.
    pub fn with_environment(mut self, variables: Variables<'_>) -> Result<NetConf, CniError> {
        for (name, setting) in SETTINGS {
            let setting = setting(&mut self.datastore);
            if let Some(value) = lookup_value(variables, name, setting.is_empty()) {
                *setting = value;
            }
        }
        let datastore = &mut self.datastore;
        if let Some(password) = lookup_value(
            variables,
            "ETCD_PASSWORD",
            datastore.etcd_password.is_empty(),
        ) {
            datastore.etcd_password = Secret::new(password);
        }
        if let Some(kind) = lookup_value(
            variables,
            "DATASTORE_TYPE",
            datastore.datastore_type.is_none(),
        ) {
            datastore.datastore_type = parse_datastore_type(&kind)?;
        }
        if let Some(group) = lookup_value(
            variables,
            "CALICO_API_GROUP",
            datastore.calico_api_group.is_none(),
        ) {
            datastore.calico_api_group = parse_api_group(&group);
        }
        Ok(self)
    }
}

impl DatastoreConf {
    /// Default path of the `local` datastore's file.
    pub const DEFAULT_PATH: &'static str = "/var/lib/calico/calico.db";

    /// Returns the kind of the datastore, with the default of an unset `datastore_type` applied.
    pub fn kind(&self) -> DatastoreType {
        match self.datastore_type {
            Some(kind) => kind,
            None if !self.etcd_endpoints.is_empty() => DatastoreType::Etcdv3,
            None if !self.datastore_path.is_empty() => DatastoreType::Local,
            None => DatastoreType::Kubernetes,
        }
    }

    /// Returns the path of the `local` datastore's file, with the default of an unset
    /// `datastore_path` applied.
    pub fn path(&self) -> &str {
        if self.datastore_path.is_empty() {
            DatastoreConf::DEFAULT_PATH
        } else {
            &self.datastore_path
        }
    }
}

/// Returns the value that the environment gives the setting `name`, or `None` to keep the
/// configured value.
fn lookup_value(variables: Variables<'_>, name: &str, is_unset: bool) -> Option<String> {
    variables
        .get(&format!("CALICO_{name}"))
        .or_else(|| variables.get(name).filter(|_| is_unset))
}

fn parse_datastore_type(text: &str) -> Result<Option<DatastoreType>, CniError> {
    if text.is_empty() {
        return Ok(None);
    }
    let words = DatastoreType::WORDS;
    let found = words
        .iter()
        .find(|(word, _)| *word == text)
        .map(|(_, kind)| *kind);
    found.map(Some).ok_or_else(|| {
        let known = words.map(|(word, _)| word).join(", ");
        CniError::new(
            Code::INVALID_ENVIRONMENT,
            format!("unknown datastore type: {text}"),
        )
        .with_details(format!(
            "set DATASTORE_TYPE or CALICO_DATASTORE_TYPE to one of {known}"
        ))
    })
}

/// Returns the API group that the environment variable selects, or `None` for discovery. As in
/// upstream, every unknown value selects the v1 group (IPAM-20).
fn parse_api_group(text: &str) -> Option<ApiGroup> {
    match text {
        "" => None,
        _ if text.eq_ignore_ascii_case("projectcalico.org/v3") => Some(ApiGroup::V3),
        _ => Some(ApiGroup::CrdV1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type EnvSettings<'a> = &'a [(&'a str, &'a str)];

    fn conf(json: &str, variables: EnvSettings<'_>) -> Result<NetConf, CniError> {
        let lookup = |name: &str| {
            variables
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| value.to_string())
        };
        NetConf::parse(json.as_bytes())
            .unwrap()
            .with_environment(Variables::new(&lookup))
    }

    #[test]
    fn datastore_variables_follow_the_documented_precedence() {
        let json = r#"{"etcd_endpoints":"http://conf"}"#;
        let table: [(&str, EnvSettings<'_>, &str); 6] = [
            (json, &[], "http://conf"),
            (json, &[("ETCD_ENDPOINTS", "http://plain")], "http://conf"),
            (
                json,
                &[("CALICO_ETCD_ENDPOINTS", "http://prefixed")],
                "http://prefixed",
            ),
            (json, &[("CALICO_ETCD_ENDPOINTS", "")], ""),
            ("{}", &[("ETCD_ENDPOINTS", "http://plain")], "http://plain"),
            (
                "{}",
                &[
                    ("ETCD_ENDPOINTS", "http://plain"),
                    ("CALICO_ETCD_ENDPOINTS", ""),
                ],
                "",
            ),
        ];
        for (json, variables, want) in table {
            assert_eq!(
                conf(json, variables).unwrap().datastore.etcd_endpoints,
                want,
                "{json} {variables:?}"
            );
        }
    }

    #[test]
    fn every_datastore_variable_is_read() {
        for (name, setting) in SETTINGS {
            let mut plain = conf("{}", &[(name, "value")]).unwrap();
            assert_eq!(setting(&mut plain.datastore), "value", "{name}");
        }
        let conf = conf(
            "{}",
            &[
                ("ETCD_PASSWORD", "p"),
                ("DATASTORE_TYPE", "local"),
                ("CALICO_API_GROUP", "ProjectCalico.org/V3"),
            ],
        );
        let datastore = conf.unwrap().datastore;
        assert_eq!(datastore.etcd_password.reveal(), "p");
        assert_eq!(datastore.datastore_type, Some(DatastoreType::Local));
        assert_eq!(datastore.calico_api_group, Some(ApiGroup::V3));
    }

    #[test]
    fn datastore_kind_is_derived_without_a_type() {
        let kind = |json: &str, variables: EnvSettings<'_>| {
            conf(json, variables).unwrap().datastore.kind()
        };
        assert_eq!(kind("{}", &[]), DatastoreType::Kubernetes);
        assert_eq!(
            kind(r#"{"etcd_discovery_srv":"x"}"#, &[]),
            DatastoreType::Kubernetes
        );
        assert_eq!(
            kind("{}", &[("ETCD_ENDPOINTS", "http://plain")]),
            DatastoreType::Etcdv3
        );
        assert_eq!(
            kind(r#"{"datastore_path":"/x"}"#, &[]),
            DatastoreType::Local
        );
        assert_eq!(
            kind(
                r#"{"datastore_path":"/x"}"#,
                &[("ETCD_ENDPOINTS", "http://plain")]
            ),
            DatastoreType::Etcdv3
        );
        assert_eq!(
            kind(
                r#"{"datastore_type":"kubernetes"}"#,
                &[("DATASTORE_TYPE", "etcdv3")]
            ),
            DatastoreType::Kubernetes
        );
        assert_eq!(
            kind(
                r#"{"datastore_type":"kubernetes"}"#,
                &[("CALICO_DATASTORE_TYPE", "local")]
            ),
            DatastoreType::Local
        );
    }

    #[test]
    fn unknown_datastore_type_is_an_environment_error() {
        let error = conf("{}", &[("DATASTORE_TYPE", "mongo")]).unwrap_err();
        assert_eq!(
            (error.code, error.msg.as_str()),
            (Code::INVALID_ENVIRONMENT, "unknown datastore type: mongo")
        );
    }
}
