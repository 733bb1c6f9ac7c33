use std::path::Path;

use libcalico::kubernetes::ApiGroup;

use super::*;

fn resolve(
    settings: &DatastoreSettings,
    env: &[(&str, &str)],
) -> Result<DatastoreConfig, ConfigError> {
    let lookup = |name: &str| {
        env.iter()
            .find(|(n, _)| *n == name)
            .map(|(_, v)| (*v).to_owned())
    };
    DatastoreConfig::new(settings, Variables::new(&lookup))
}

fn etcd(settings: &DatastoreSettings, env: &[(&str, &str)]) -> EtcdConfig {
    match resolve(settings, env) {
        Ok(DatastoreConfig::Etcd(config)) => *config,
        other => panic!("not etcd: {other:?}"),
    }
}

fn local_path(settings: &DatastoreSettings, env: &[(&str, &str)]) -> PathBuf {
    match resolve(settings, env) {
        Ok(DatastoreConfig::Local(config)) => config.path,
        other => panic!("not local: {other:?}"),
    }
}

fn endpoints(list: &str) -> DatastoreSettings {
    DatastoreSettings {
        etcd_endpoints: list.into(),
        ..DatastoreSettings::default()
    }
}

#[test]
fn variable_precedence_is_prefixed_then_configuration_then_plain() {
    let conf = endpoints("http://conf:1");
    let both = [
        ("CALICO_ETCD_ENDPOINTS", "http://prefixed:1"),
        ("ETCD_ENDPOINTS", "http://plain:1"),
    ];
    assert_eq!(etcd(&conf, &both).endpoints, ["http://prefixed:1"]);
    assert_eq!(etcd(&conf, &both[1..]).endpoints, ["http://conf:1"]);
    assert_eq!(
        etcd(&DatastoreSettings::default(), &both[1..]).endpoints,
        ["http://plain:1"]
    );
}

#[test]
fn empty_prefixed_variable_hides_the_unprefixed_variable() {
    let env = [
        ("CALICO_ETCD_ENDPOINTS", ""),
        ("ETCD_ENDPOINTS", "http://plain:1"),
        ("DATASTORE_TYPE", "etcdv3"),
    ];
    assert_eq!(
        resolve(&endpoints("http://conf:1"), &env),
        Err(ConfigError::NoEndpoints)
    );
}

#[test]
fn datastore_type_is_derived_from_endpoints_then_path() {
    let path = DatastoreSettings {
        datastore_path: "/x.db".into(),
        ..DatastoreSettings::default()
    };
    let both = DatastoreSettings {
        etcd_endpoints: "http://a:1".into(),
        ..path.clone()
    };
    assert_eq!(etcd(&both, &[]).endpoints, ["http://a:1"]);
    assert_eq!(local_path(&path, &[]), PathBuf::from("/x.db"));
    assert_eq!(
        local_path(
            &DatastoreSettings {
                datastore_type: "local".into(),
                ..DatastoreSettings::default()
            },
            &[]
        )
        .as_os_str(),
        DEFAULT_PATH
    );
    assert_eq!(
        resolve(&DatastoreSettings::default(), &[]),
        Err(ConfigError::NotConfigured)
    );
}

#[test]
fn missing_file_is_the_one_that_the_embedded_datastore_would_create() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("calico.db");
    let local = DatastoreConfig::Local(LocalConfig {
        path: file.clone(),
        deadline: DEFAULT_DEADLINE,
    });
    assert_eq!(local.missing_file(), Some(file.as_path()));
    std::fs::write(&file, "").unwrap();
    assert_eq!(local.missing_file(), None);
    let etcd = resolve(&endpoints("http://a:1"), &[]).unwrap();
    assert_eq!(etcd.missing_file(), None);
}

fn kubernetes(settings: &DatastoreSettings, env: &[(&str, &str)]) -> KubernetesConfig {
    match resolve(settings, env) {
        Ok(DatastoreConfig::Kubernetes(config)) => *config,
        other => panic!("{other:?}"),
    }
}

#[test]
fn kubernetes_is_selected_by_type_kubeconfig_or_in_cluster_environment() {
    let kubeconfig = DatastoreSettings {
        kubeconfig: "/k:/l".into(),
        ..DatastoreSettings::default()
    };
    assert_eq!(
        kubernetes(&kubeconfig, &[]).kubeconfig,
        [Path::new("/k"), Path::new("/l")]
    );
    for hint in [
        ("DATASTORE_TYPE", "kubernetes"),
        ("KUBERNETES_SERVICE_HOST", "10.0.0.1"),
        ("K8S_API_ENDPOINT", "https://k"),
    ] {
        kubernetes(&DatastoreSettings::default(), &[hint]);
    }
    // `HOME` alone does not select Kubernetes (DS-9).
    assert_eq!(
        resolve(&DatastoreSettings::default(), &[("HOME", "/root")]),
        Err(ConfigError::NotConfigured)
    );
    let home = kubernetes(
        &DatastoreSettings::default(),
        &[("DATASTORE_TYPE", "kubernetes"), ("HOME", "/root")],
    );
    assert_eq!(
        home.home_kubeconfig.as_deref(),
        Some(Path::new("/root/.kube/config"))
    );
    let upper = resolve(
        &DatastoreSettings::default(),
        &[("DATASTORE_TYPE", "ETCDv3")],
    );
    assert_eq!(upper, Err(ConfigError::UnknownType("ETCDv3".into())));
}

#[test]
fn kubernetes_settings_are_passed_to_the_client() {
    let settings = DatastoreSettings {
        datastore_type: "kubernetes".into(),
        k8s_api_root: "https://k:6443/api/v1/".into(),
        k8s_auth_token: "t".into(),
        k8s_certificate_authority: "/ca".into(),
        calico_api_group: "projectcalico.org/v3".into(),
        qps: 7,
        ..DatastoreSettings::default()
    };
    let config = kubernetes(
        &settings,
        &[
            ("K8S_CLIENT_BURST", "0x10"),
            ("K8S_INSECURE_SKIP_TLS_VERIFY", "true"),
        ],
    );
    assert_eq!(config.overrides.server.as_deref(), Some("https://k:6443"));
    assert_eq!(config.overrides.token.as_deref(), Some("t"));
    assert_eq!(
        config.overrides.ca_certificates.as_deref(),
        Some(Path::new("/ca"))
    );
    assert_eq!(config.group, Some(ApiGroup::V3));
    assert_eq!(
        config.rate,
        Some(Rate {
            per_second: 7,
            burst: 16
        })
    );
    assert!(config.overrides.insecure);
    assert!(!format!("{config:?}").contains("\"t\""));
    let unlimited = kubernetes(
        &DatastoreSettings {
            qps: -1,
            ..settings.clone()
        },
        &[],
    );
    assert_eq!(unlimited.rate, None);
    for (variable, value) in [
        ("K8S_CLIENT_QPS", "fast"),
        ("K8S_INSECURE_SKIP_TLS_VERIFY", "perhaps"),
        ("K8S_CLIENT_BURST", ""),
    ] {
        let refused = resolve(
            &DatastoreSettings {
                qps: 0,
                ..settings.clone()
            },
            &[(variable, value)],
        );
        assert!(
            matches!(refused, Err(ConfigError::InvalidValue(_))),
            "{variable}={value}: {refused:?}"
        );
    }
}

#[test]
fn first_endpoint_decides_encryption_for_all_endpoints() {
    let mixed = etcd(&endpoints(" https://a:1/ ,http://b:2,,c:3"), &[]);
    assert_eq!(
        mixed.endpoints,
        ["https://a:1", "https://b:2", "https://c:3"]
    );
    assert_eq!(mixed.tls, Some(TlsConfig::default()));
    assert_eq!(
        etcd(&endpoints("10.0.0.1:2379"), &[]).endpoints,
        ["https://10.0.0.1:2379"]
    );
    assert_eq!(etcd(&endpoints("http://[::1]:2379"), &[]).tls, None);
}

#[test]
fn invalid_endpoint_urls_are_reported() {
    for bad in [
        "unix:///run/etcd.sock",
        "http://",
        "https://a:1/path",
        "http://a b:1",
        "http://a:65536",
        "a:99999",
    ] {
        assert_eq!(
            resolve(&endpoints(bad), &[]),
            Err(ConfigError::InvalidEndpoint(bad.into())),
            "{bad}"
        );
    }
}

#[test]
fn endpoint_with_a_password_is_rejected_without_echoing_the_password() {
    for bad in ["http://root:hunter2@a:1", "root:hunter2@a:1"] {
        let error = resolve(&endpoints(bad), &[]).unwrap_err().to_string();
        assert!(
            error.contains("...@a:1")
                && error.contains("ETCD_PASSWORD")
                && !error.contains("hunter2"),
            "{error}"
        );
    }
}

#[test]
fn srv_discovery_is_rejected_only_for_etcd() {
    let srv = [("ETCD_DISCOVERY_SRV", "example.org")];
    let discovery = ConfigError::SrvDiscovery("example.org".into());
    assert_eq!(resolve(&endpoints("http://a:1"), &srv), Err(discovery));
    assert_eq!(
        resolve(&DatastoreSettings::default(), &srv),
        Err(ConfigError::NotConfigured)
    );
}

#[test]
fn srv_discovery_names_the_way_out() {
    let error = resolve(
        &endpoints("http://a:1"),
        &[("ETCD_DISCOVERY_SRV", "example.org")],
    )
    .unwrap_err()
    .to_string();
    for part in [
        "etcd_endpoints",
        "dig +short SRV _etcd-client-ssl._tcp.example.org",
        "_etcd-client._tcp.example.org",
    ] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn tls_variables_apply_only_with_tls() {
    let unknown = [("TLS_CIPHER_SUITES", "TLS_NULL")];
    assert_eq!(
        resolve(&endpoints("https://a:1"), &unknown),
        Err(ConfigError::UnknownCipherSuite("TLS_NULL".into()))
    );
    assert_eq!(
        resolve(&endpoints("http://a:1"), &unknown)
            .unwrap()
            .warnings(),
        &[] as &[String]
    );
    let lacking = [("TLS_CIPHER_SUITES", "TLS_RSA_WITH_AES_128_CBC_SHA")];
    let refused = ConfigError::NoCipherSuite("TLS_RSA_WITH_AES_128_CBC_SHA".into());
    assert_eq!(resolve(&endpoints("https://a:1"), &lacking), Err(refused));

    let strict = [("TLS_MIN_VERSION", "1.3")];
    let policy = etcd(&endpoints("https://a:1"), &strict).tls.unwrap().policy;
    assert_ne!(policy, TlsPolicy::default());
    assert_eq!(
        etcd(&endpoints("https://a:1"), &[("TLS_MIN_VERSION", "1.2")]).tls,
        Some(TlsConfig::default())
    );
    let old = resolve(&endpoints("https://a:1"), &[("TLS_MIN_VERSION", "1.1")]).unwrap();
    assert!(
        old.warnings().len() == 1 && old.warnings()[0].contains("TLS_MIN_VERSION: `1.1`"),
        "{old:?}"
    );
}

#[test]
fn tls_files_are_read_from_configuration_and_environment() {
    let conf = DatastoreSettings {
        etcd_ca_cert_file: "/ca".into(),
        ..endpoints("https://a:1")
    };
    let env = [
        ("ETCD_CERT_FILE", "/cert"),
        ("ETCD_KEY_FILE", "/key"),
        ("ETCD_CA_CERT_FILE", "/weaker"),
    ];
    let tls = etcd(&conf, &env).tls.unwrap();
    assert_eq!(
        format!("{:?}", tls.ca_certificates),
        "Some(etcd_ca_cert_file /ca)"
    );
    assert_eq!(
        format!("{:?}", tls.identity),
        "Some((etcd_cert_file /cert, etcd_key_file /key))"
    );
}

#[test]
fn inconsistent_tls_settings_are_rejected() {
    let https = endpoints("https://a:1");
    let half = DatastoreSettings {
        etcd_cert_file: "/cert".into(),
        ..https.clone()
    };
    let missing = ConfigError::IncompleteIdentity {
        present: "etcd_cert_file",
        missing: "etcd_key_file",
    };
    assert_eq!(resolve(&half, &[]), Err(missing));
    let half = DatastoreSettings {
        etcd_key: "k".into(),
        ..https.clone()
    };
    assert_eq!(
        resolve(&half, &[]),
        Err(ConfigError::IncompleteIdentity {
            present: "etcd_key",
            missing: "etcd_cert"
        })
    );
    let mixed = DatastoreSettings {
        etcd_ca_cert: "pem".into(),
        etcd_ca_cert_file: "/ca".into(),
        ..https
    };
    let exclude = ConfigError::MixedTls {
        file: "etcd_ca_cert_file",
        inline: "etcd_ca_cert",
    };
    assert_eq!(resolve(&mixed, &[]), Err(exclude));
    let plain = DatastoreSettings {
        etcd_ca_cert_file: "/ca".into(),
        ..endpoints("http://a:1")
    };
    assert_eq!(etcd(&plain, &[]).tls, None);
}

#[test]
fn credentials_need_username_and_password_and_are_not_printed() {
    let conf = endpoints("http://a:1");
    let env = [("ETCD_USERNAME", "u"), ("CALICO_ETCD_PASSWORD", "secret")];
    let config = etcd(&conf, &env);
    assert_eq!(config.credentials, Some(("u".into(), "secret".into())));
    assert!(!format!("{config:?}").contains("secret"));
    assert_eq!(etcd(&conf, &env[..1]).credentials, None);
}
