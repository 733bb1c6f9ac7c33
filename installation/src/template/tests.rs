use libcalico::variables::Variables;

use super::*;

fn values(variables: &[(&str, &str)]) -> Values {
    let lookup = |name: &str| {
        variables
            .iter()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| (*value).to_owned())
    };
    Values::new(&Variables::new(&lookup), "my-node", "/etc/cni/net.d")
}

#[test]
fn every_placeholder_is_substituted() {
    let values = values(&[
        ("KUBERNETES_SERVICE_HOST", "fd00::1"),
        ("KUBERNETES_SERVICE_PORT", "6443"),
        ("ETCD_ENDPOINTS", "https://a:2379,https://b:2379"),
        ("ETCD_DISCOVERY_SRV", "example.org"),
        ("CNI_MTU", "0"),
        ("REQUIRE_MTU_FILE", "true"),
    ]);
    let tls = TlsPaths {
        ca: "/ca".into(),
        cert: "/cert".into(),
        key: "/key".into(),
    };
    let filled = values.with_token("secret".into()).with_tls(tls).fill(
        "__LOG_LEVEL__ __LOG_FILE_PATH__ __LOG_FILE_MAX_SIZE__ __LOG_FILE_MAX_AGE__ \
         __LOG_FILE_MAX_COUNT__ __DATASTORE_TYPE__ __KUBERNETES_NODE_NAME__ \
         __KUBECONFIG_FILEPATH__ __CNI_MTU__ __REQUIRE_MTU_FILE__ __CALICO_API_GROUP__ \
         __KUBERNETES_SERVICE_HOST__ __KUBERNETES_SERVICE_PORT__ __SERVICEACCOUNT_TOKEN__ \
         __ETCD_CERT_FILE__ __ETCD_CA_CERT_FILE__ __ETCD_KEY_FILE__ __ETCD_ENDPOINTS__ \
         __ETCD_DISCOVERY_SRV__ __CNI_MTU__",
    );
    assert_eq!(
        filled,
        "info /var/log/calico/cni/cni.log 100 30 10 kubernetes my-node \
         /etc/cni/net.d/calico-kubeconfig 0 true crd.projectcalico.org/v1 fd00::1 6443 secret \
         /cert /ca /key https://a:2379,https://b:2379 example.org 0"
    );
}

#[test]
fn text_around_placeholders_is_preserved_byte_for_byte() {
    let text = "\t{ \"b\" : __CNI_MTU__ ,\r\n\"a\":\"ü__UNKNOWN__\"}\n\n";
    assert_eq!(values(&[]).fill(text), text.replace("__CNI_MTU__", "1500"));
}

#[test]
fn substituted_values_are_escaped_in_json_strings() {
    let filled =
        values(&[("LOG_FILE_PATH", "C:\\logs\\\"x\".log")]).fill(r#"{"p": "__LOG_FILE_PATH__"}"#);
    assert_eq!(parse(&filled).unwrap()["p"], "C:\\logs\\\"x\".log");
}

#[test]
fn explicit_node_name_is_used_verbatim() {
    let name = |variables: &[(&str, &str)]| values(variables).fill("__KUBERNETES_NODE_NAME__");
    assert_eq!(name(&[("KUBERNETES_NODE_NAME", "Node-A")]), "Node-A");
    assert_eq!(name(&[("KUBERNETES_NODE_NAME", "")]), "");
    assert_eq!(name(&[]), "my-node");
}

#[test]
fn template_values_debug_output_omits_the_token() {
    let values = values(&[]).with_token("secret".into());
    assert!(!format!("{values:?}").contains("secret"));
}

#[test]
fn invalid_template_is_rejected_without_echoing_it() {
    assert!(parse("{}").unwrap().is_empty());
    for (text, expected) in [
        (r#"{"missing quote}"#, "not valid JSON (line 1, column 16"),
        (
            r#"{"token": "secret", "mtu": ,}"#,
            "not valid JSON (line 1, column 28",
        ),
        ("", "not valid JSON"),
        ("[{\"secret\": 1}]", "is not a JSON object"),
        ("\"secret\"", "is not a JSON object"),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert!(
            error.contains(expected) && !error.contains("secret"),
            "{error}"
        );
    }
}

#[test]
fn built_in_template_is_a_valid_configuration() {
    let conf = parse(&values(&[]).fill(BUILT_IN)).unwrap();
    let kinds: Vec<_> = plugins(&conf).into_iter().map(kind).collect();
    assert_eq!(kinds, ["calico", "portmap"]);
    let single = parse(r#"{"type": "calico"}"#).unwrap();
    assert_eq!(plugins(&single).len(), 1);
}

fn of(text: &str, directories: &[PathBuf]) -> Vec<ConfigProblem> {
    find_problems(text, &parse(text).unwrap(), directories)
}

#[test]
fn complete_plugin_list_has_no_problems() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["calico", "portmap"] {
        std::fs::write(dir.path().join(name), "").unwrap();
    }
    let text = r#"{"cniVersion": "1.1.0", "plugins": [{"type": "calico"}, {"type": "portmap"}]}"#;
    assert_eq!(of(text, &[PathBuf::from("/none"), dir.path().into()]), []);
}

#[test]
fn each_remaining_placeholder_is_reported_once() {
    let text = r#"{"type": "", "a": "__NOBODY_KNOWS__ __NOBODY_KNOWS__", "__init__": "__", "b": "x__NO2__y___"}"#;
    let names = ["__NOBODY_KNOWS__", "__NO2__"];
    assert_eq!(
        of(text, &[]),
        names.map(|name| ConfigProblem::Placeholder(name.to_owned()))
    );
}

#[test]
fn configuration_without_a_plugin_or_its_program_is_reported() {
    assert_eq!(of("{}", &[]), [ConfigProblem::NoPlugin]);
    let missing = of(r#"{"type": "flannel"}"#, &["/opt/cni/bin".into()]);
    assert!(
        missing[0]
            .to_string()
            .starts_with("the plugin flannel is missing in /opt/cni/bin, "),
        "{missing:?}"
    );
}

#[test]
fn programs_of_a_plugin_include_its_ipam_plugin_and_its_delegate() {
    let text = r#"{"type": "flannel", "ipam": {}, "delegate": {"type": "calico", "ipam": {"type": "host-local"}}}"#;
    assert_eq!(
        program_names(&parse(text).unwrap()),
        ["flannel", "calico", "host-local"]
    );
}

#[test]
fn missing_program_that_a_plugin_calls_is_reported_once() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["calico", "flannel"] {
        std::fs::write(dir.path().join(name), "").unwrap();
    }
    let directories = vec![dir.path().to_owned()];
    for text in [
        r#"{"plugins": [{"type": "calico", "ipam": {"type": "host-local"}}, {"type": "host-local"}]}"#,
        r#"{"type": "flannel", "delegate": {"type": "calico", "ipam": {"type": "host-local"}}}"#,
    ] {
        let (name, directories) = ("host-local".to_owned(), directories.clone());
        assert_eq!(
            of(text, &directories),
            [ConfigProblem::MissingProgram { name, directories }],
            "{text}"
        );
    }
}

#[test]
fn program_name_with_a_separator_is_invalid_even_if_the_file_exists() {
    let dir = tempfile::tempdir().unwrap();
    let bin = dir.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    for file in [bin.join("calico"), dir.path().join("x")] {
        std::fs::write(file, "").unwrap();
    }
    for name in [
        "../x".to_owned(),
        dir.path().join("x").display().to_string(),
    ] {
        let text = format!(r#"{{"type": "calico", "ipam": {{"type": "{name}"}}}}"#);
        assert_eq!(
            of(&text, std::slice::from_ref(&bin)),
            [ConfigProblem::InvalidProgram(name)]
        );
    }
}

#[test]
fn unsupported_newer_cni_versions_are_reported() {
    for (version, is_new) in [
        ("1.1.0", false),
        ("1.1.1", true),
        ("2.0.0", true),
        ("0.3.1", false),
        ("", false),
    ] {
        assert_eq!(is_too_new(version), is_new, "{version}");
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("calico"), "").unwrap();
    let text = r#"{"cniVersion": "1.2.0", "type": "calico"}"#;
    assert_eq!(
        of(text, &[dir.path().into()]),
        [ConfigProblem::TooNew("1.2.0".into())]
    );
}
