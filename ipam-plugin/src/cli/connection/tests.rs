use clap::Parser;
use datastore::KubernetesConfig;
use datastore::config::{InlineKubeconfig, Overrides, Pem, Rate};
use libcalico::kubernetes::ApiGroup;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    connection: ConnectionArgs,
}

fn resolve(line: &[&str], env: &[(&str, &str)]) -> Result<DatastoreConfig, CliError> {
    let line = Line::try_parse_from(std::iter::once(&"calico-ipam").chain(line)).unwrap();
    let lookup = |name: &str| {
        env.iter()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value.to_string())
    };
    line.connection.resolve(Variables::new(&lookup))
}

fn name(line: &[&str], env: &[(&str, &str)]) -> String {
    describe(&resolve(line, env).unwrap())
}

#[test]
fn datastore_options_override_the_environment() {
    let env = [
        ("CALICO_DATASTORE_TYPE", "etcdv3"),
        ("CALICO_ETCD_ENDPOINTS", "http://env:2379"),
    ];
    assert_eq!(name(&[], &env), "http://env:2379");
    assert_eq!(name(&["--datastore-path", "/x.db"], &env), "/x.db");
    assert_eq!(
        name(&["--etcd-endpoints", "http://option:2379"], &env),
        "http://option:2379"
    );
    assert_eq!(
        name(&["--datastore-type", "local"], &[("KUBECONFIG", "/k")]),
        DEFAULT_PATH
    );
    assert_eq!(
        name(
            &[],
            &[("DATASTORE_TYPE", "local"), ("DATASTORE_PATH", "/y.db")]
        ),
        "/y.db"
    );
}

#[test]
fn command_of_a_person_follows_the_proxies_of_the_environment() {
    let env = [("HTTPS_PROXY", "http://proxy:3128")];
    let lookup = |name: &str| (name == "HTTPS_PROXY").then(|| env[0].1.to_owned());
    let place = ClientPlace::Workstation(ProxyVariables::read(Variables::new(&lookup)));
    assert_eq!(
        kubernetes(resolve(&["--kubeconfig", "/k"], &env)).place,
        place
    );
    let of_file = resolve_calicoctl(&[], &calicoctl_spec("  kubeconfig: /k\n"), &env);
    assert_eq!(kubernetes(of_file).place, place);
}

#[test]
fn datastore_is_read_from_a_plugin_configuration_or_list() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("10-calico.conflist");
    let file = path.to_str().unwrap();
    let write = |text: &str| std::fs::write(&path, text).unwrap();

    let plugin =
        r#"{"type":"calico","datastore_type":"etcdv3","etcd_endpoints":"http://conf:2379"}"#;
    write(&format!(
        r#"{{"name":"n","cniVersion":"1.0.0","plugins":[{{"type":"bandwidth"}},{plugin}]}}"#
    ));
    assert_eq!(name(&["--config", file], &[]), "http://conf:2379");
    assert_eq!(
        name(
            &["--config", file],
            &[("CALICO_ETCD_ENDPOINTS", "http://env:2379")]
        ),
        "http://env:2379"
    );
    assert_eq!(
        name(&["--config", file, "--datastore-path", "/x.db"], &[]),
        "/x.db"
    );

    write(r#"{"name":"n","type":"bridge","ipam":{"type":"calico-ipam"},"datastore_path":"/c.db"}"#);
    assert_eq!(name(&["--config", file], &[]), "/c.db");

    for (text, problem) in [
        ("{", "EOF"),
        ("[]", "not a JSON object"),
        (
            r#"{"name":"n","plugins":[{"type":"bridge"}]}"#,
            "no plugin of the",
        ),
        (
            r#"{"name":"n","type":"multus","datastore_path":"/m.db"}"#,
            "the configured plugin is not `calico`",
        ),
    ] {
        write(text);
        let error = resolve(&["--config", file], &[]).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("network configuration {file}: "))
                && error.contains(problem),
            "{error}"
        );
    }
    assert!(
        resolve(&["--config", "/no/such/file"], &[])
            .unwrap_err()
            .to_string()
            .contains("No such file")
    );
}

#[test]
fn installed_configuration_is_used_if_no_datastore_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("10-calico.conflist");
    let config = |line: &[&str], env: &[(&str, &str)]| {
        let line = Line::try_parse_from(std::iter::once(&"calico-ipam").chain(line)).unwrap();
        let lookup = |name: &str| {
            env.iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| value.to_string())
        };
        line.connection
            .or_configuration(&path, Variables::new(&lookup))
            .config
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
        assert!(
            nothing
                .unwrap_err()
                .to_string()
                .contains("--datastore-type local")
        );
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new.db");
    let connection = resolve(&["--datastore-path", path.to_str().unwrap()], &[]).unwrap();
    assert!(connection.missing_file().is_some());
    std::fs::write(path, "").unwrap();
    assert_eq!(connection.missing_file(), None);
}

/// Resolves with a configuration file of calicoctl, after `words` of the command line.
fn resolve_calicoctl(
    words: &[&str],
    text: &str,
    env: &[(&str, &str)],
) -> Result<DatastoreConfig, CliError> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    resolve(
        &[
            words,
            &["--calicoctl-config", file.path().to_str().unwrap()],
        ]
        .concat(),
        env,
    )
}

fn calicoctl_spec(spec: &str) -> String {
    format!("apiVersion: projectcalico.org/v3\nkind: CalicoAPIConfig\nmetadata:\nspec:\n{spec}")
}

fn kubernetes(config: Result<DatastoreConfig, CliError>) -> KubernetesConfig {
    match config {
        Ok(DatastoreConfig::Kubernetes(config)) => *config,
        other => panic!("{other:?}"),
    }
}

#[test]
fn calicoctl_config_selects_etcd_with_inline_certificates() {
    let spec = "  datastoreType:\n  etcdEndpoints: https://a:2379,https://b:2379\n  etcdUsername: \
                u\n  etcdPassword: 007\n  etcdCACert: |\n    ca\n  etcdCert: |\n    cert\n  \
                etcdKey: |\n    key\n";
    let Ok(DatastoreConfig::Etcd(etcd)) = resolve_calicoctl(&[], &calicoctl_spec(spec), &[]) else {
        panic!()
    };
    assert_eq!(etcd.endpoints, ["https://a:2379", "https://b:2379"]);
    assert_eq!(etcd.credentials, Some(("u".into(), "007".into())));
    let tls = etcd.tls.unwrap();
    let inline = |setting, text: &str| Pem::Inline {
        setting,
        text: text.into(),
    };
    assert_eq!(tls.ca_certificates, Some(inline("etcd_ca_cert", "ca\n")));
    assert_eq!(
        tls.identity,
        Some((inline("etcd_cert", "cert\n"), inline("etcd_key", "key\n")))
    );
}

#[test]
fn calicoctl_config_hides_the_environment() {
    let env = [
        ("DATASTORE_TYPE", "etcdv3"),
        ("CALICO_ETCD_ENDPOINTS", "http://env:2379"),
        ("ETCD_CA_CERT_FILE", "/env"),
        ("KUBECONFIG", "/env"),
        ("K8S_CURRENT_CONTEXT", "env"),
        ("HOME", "/home/u"),
    ];
    let spec = "  kubeconfig: /k:/l\n  k8sCurrentContext: prod\n  k8sClientQPS: 2.5\n  \
                k8sClientBurst: 7\n  k8sInsecureSkipTLSVerify: true\n  calicoAPIGroup: \
                projectcalico.org/v3\n  usePodCIDR: false\n  k8sDisableNodePoll: true\n";
    let config = kubernetes(resolve_calicoctl(&[], &calicoctl_spec(spec), &env));
    assert_eq!(
        (config.kubeconfig, config.home_kubeconfig),
        (vec!["/k".into(), "/l".into()], None)
    );
    assert_eq!(
        (
            config.overrides.context.as_deref(),
            config.overrides.insecure
        ),
        (Some("prod"), true)
    );
    assert_eq!(
        config.rate,
        Some(Rate {
            per_second: 3,
            burst: 7
        })
    );
    assert_eq!(config.group, Some(ApiGroup::V3));
    let etcd = resolve_calicoctl(
        &[],
        &calicoctl_spec("  etcdEndpoints: http://file:2379\n"),
        &env,
    )
    .unwrap();
    assert_eq!(describe(&etcd), "http://file:2379");
    let old = [
        ("TLS_MIN_VERSION", "1.1"),
        ("CALICO_TLS_MIN_VERSION", "1.2"),
    ];
    let etcd = resolve_calicoctl(
        &[],
        &calicoctl_spec("  etcdEndpoints: https://file:2379\n"),
        &old,
    )
    .unwrap();
    assert_eq!(
        etcd.warnings().len(),
        1,
        "TLS_MIN_VERSION applies: {etcd:?}"
    );
    let empty = kubernetes(resolve_calicoctl(&[], &calicoctl_spec(""), &env));
    assert_eq!(
        empty.home_kubeconfig.as_deref(),
        Some(Path::new("/home/u/.kube/config"))
    );
    assert_eq!(
        (empty.kubeconfig, empty.overrides),
        (Vec::new(), Overrides::default())
    );
}

#[test]
fn command_of_a_person_has_a_request_rate_only_if_one_is_set() {
    let unlimited = [
        resolve(&["--kubeconfig", "/k"], &[]),
        resolve(
            &[],
            &[("DATASTORE_TYPE", "kubernetes"), ("KUBECONFIG", "/k")],
        ),
        resolve_calicoctl(
            &[],
            &calicoctl_spec("  kubeconfig: /k\n"),
            &[("K8S_CLIENT_QPS", "5")],
        ),
        resolve_calicoctl(
            &[],
            &calicoctl_spec("  kubeconfig: /k\n  k8sClientQPS: 0\n"),
            &[],
        ),
    ];
    for config in unlimited {
        assert_eq!(kubernetes(config).rate, None);
    }
    for variable in ["K8S_CLIENT_QPS", "CALICO_K8S_CLIENT_QPS"] {
        let config = kubernetes(resolve(
            &["--kubeconfig", "/k"],
            &[(variable, "9"), ("K8S_CLIENT_BURST", "7")],
        ));
        assert_eq!(
            config.rate,
            Some(Rate {
                per_second: 9,
                burst: 7
            }),
            "{variable}"
        );
    }
}

#[test]
fn unknown_key_of_a_calicoctl_config_is_refused() {
    let head = "apiVersion: projectcalico.org/v3\nkind: CalicoAPIConfig\n";
    for (text, problem) in [
        (
            calicoctl_spec("  etcdEndpoint: x\n"),
            "unknown field `etcdEndpoint`",
        ),
        (
            calicoctl_spec("  etcdKey: a\n  etcdKey: b\n"),
            "duplicate field `etcdKey`",
        ),
        (
            format!("{head}etcdEndpoints: x\n"),
            "unknown field `etcdEndpoints`",
        ),
        (
            calicoctl_spec("  datastoreType: local\n"),
            "datastoreType is `local`; write etcdv3 or kubernetes",
        ),
        (
            calicoctl_spec("  datastoreType: etcdv3\n"),
            "no etcd endpoints specified",
        ),
        (
            calicoctl_spec("  etcdEndpoints: http://a:1\n  etcdDiscoverySrv: x.org\n"),
            "etcd_discovery_srv `x.org`",
        ),
        (
            calicoctl_spec("  k8sInsecureSkipTLSVerify: hunter2\n"),
            "invalid type: string, expected a boolean",
        ),
        (
            format!("{head}spec: |\n  etcdPassword: hunter2\n"),
            "invalid type: string, expected struct",
        ),
        (
            "kind: CalicoAPIConfig\n".to_owned(),
            "apiVersion is ``; write projectcalico.org/v3",
        ),
        (
            "apiVersion: projectcalico.org/v3\nkind: Node\n".to_owned(),
            "kind is `Node`; write CalicoAPIConfig",
        ),
        (
            r#"{ "kind": "CalicoAPIConfig", "kind": "x" }"#.to_owned(),
            "duplicate field `kind`",
        ),
        (
            r#"{ "spec": { "etcdPassword": 20071221 } }"#.to_owned(),
            "invalid type: integer, expected a string at line 1",
        ),
        (
            r#"{ "spec": { "etcdPassword": 2007.1221 } }"#.to_owned(),
            "invalid type: floating point, expected a string",
        ),
    ] {
        let error = resolve_calicoctl(&[], &text, &[]).unwrap_err().to_string();
        assert!(
            error.starts_with("configuration of calicoctl /") && error.contains(problem),
            "{error}"
        );
        assert!(
            !error.contains("hunter2") && !error.contains("1221"),
            "{error}"
        );
    }
    let missing = resolve(&["--calicoctl-config", "/no/such/file"], &[])
        .unwrap_err()
        .to_string();
    assert!(
        missing.starts_with("configuration of calicoctl /no/such/file: No such file"),
        "{missing}"
    );
}

#[test]
fn calicoctl_config_is_accepted_as_json() {
    let text = "{\n\t\"apiVersion\": \"projectcalico.org/v3\", \"kind\": \"CalicoAPIConfig\", \
                \"metadata\": {},\n\t\
                \"spec\": { \"etcdEndpoints\": \"http://json:2379\", \"etcdKey\": null } }";
    assert_eq!(
        describe(&resolve_calicoctl(&[], text, &[]).unwrap()),
        "http://json:2379"
    );
}

#[test]
fn calicoctl_config_is_not_read_without_its_option() {
    let env = [
        ("CALICOCTL_CONFIG", "/no/such/file"),
        ("DATASTORE_TYPE", "local"),
        ("DATASTORE_PATH", "/y.db"),
    ];
    assert_eq!(name(&[], &env), "/y.db");
    let line = Line::try_parse_from(["calico-ipam", "--calicoctl-config", "/c"]).unwrap();
    let with_conflist = line
        .connection
        .or_configuration(Path::new("/"), Variables::NONE);
    assert_eq!(with_conflist.config, None);
    for other in [
        "--kubeconfig",
        "--config",
        "--etcd-endpoints",
        "--datastore-path",
    ] {
        let line = ["calico-ipam", "--calicoctl-config", "/c", other, "x"];
        assert!(Line::try_parse_from(line).is_err(), "{other}");
    }
}

#[test]
fn inline_kubeconfig_is_used_alone() {
    let spec = "  kubeconfig: /k\n  k8sAPIEndpoint: https://k\n  k8sAPIToken: t\n  \
                k8sCurrentContext: c\n  kubeconfigInline: |\n    apiVersion: v1\n    kind: \
                Config\n";
    let config = kubernetes(resolve_calicoctl(
        &[],
        &calicoctl_spec(spec),
        &[("HOME", "/home/u")],
    ));
    assert_eq!(
        config.inline,
        Some(InlineKubeconfig::new("apiVersion: v1\nkind: Config\n"))
    );
    assert_eq!(
        (config.kubeconfig, config.home_kubeconfig),
        (Vec::new(), None)
    );
    assert_eq!(config.overrides, Overrides::default());
    let config = kubernetes(resolve_calicoctl(
        &["--context", "prod"],
        &calicoctl_spec(spec),
        &[],
    ));
    assert_eq!(
        config.overrides,
        Overrides {
            context: Some("prod".into()),
            ..Overrides::default()
        }
    );
}

#[test]
fn context_option_selects_the_cluster() {
    let env = [
        ("K8S_CURRENT_CONTEXT", "env"),
        ("KUBECONFIG", "/env"),
        ("HOME", "/home/u"),
    ];
    for (line, files) in [
        (&["--kubeconfig", "/k", "--context", "prod"][..], "/k"),
        (&["--context", "prod"], "/env"),
        (
            &["--context", "prod", "--datastore-type", "kubernetes"],
            "/env",
        ),
    ] {
        let config = kubernetes(resolve(line, &env));
        assert_eq!(
            config.overrides.context.as_deref(),
            Some("prod"),
            "{line:?}"
        );
        assert_eq!(config.kubeconfig, [Path::new(files)], "{line:?}");
    }
    let of_file = kubernetes(resolve_calicoctl(
        &["--context", "prod"],
        &calicoctl_spec("  k8sCurrentContext: c\n"),
        &env,
    ));
    assert_eq!(of_file.overrides.context.as_deref(), Some("prod"));
    let etcd = [
        ("DATASTORE_TYPE", "etcdv3"),
        ("ETCD_ENDPOINTS", "http://e:2379"),
    ];
    let error = resolve(&["--context", "prod"], &etcd)
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("--context is for an API server, but the datastore is http://e:2379; "),
        "{error}"
    );
}
