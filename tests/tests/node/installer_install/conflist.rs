//! The configuration file: its name, content and mode, and the files that it replaces.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use integration_tests::installation::{Container, NET};
use integration_tests::namespaces::isolated;

use super::{DEFAULT, failed, logged, succeeded};

const FILE: &str = "10-calico.conflist";

#[test]
fn built_in_template_is_rendered_byte_for_byte() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        succeeded(&container.run(&[]).unwrap());
        assert_eq!(container.conf(FILE).unwrap(), DEFAULT);
        let mode = |name: &str| {
            fs::metadata(container.path(NET).join(name))
                .unwrap()
                .permissions()
                .mode()
                & 0o7777
        };
        assert_eq!(mode(FILE), 0o600);
        succeeded(&container.run(&[("TEST_FILE_PERMISSION", "0644")]).unwrap());
        assert_eq!(mode(FILE), 0o644);
    });
}

#[test]
fn second_install_without_changes_writes_nothing() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        succeeded(&container.run(&[]).unwrap());
        let before = container.fingerprint();
        succeeded(&container.run(&[]).unwrap());
        assert_eq!(container.fingerprint(), before);
        container.file(&format!("{NET}/{FILE}"), "{}").unwrap();
        succeeded(&container.run(&[]).unwrap());
        assert_eq!(container.conf(FILE).unwrap(), DEFAULT);
    });
}

#[test]
fn old_calico_configuration_is_deleted_after_a_rename_and_a_foreign_one_stays() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        succeeded(
            &container
                .run(&[("CNI_CONF_NAME", "20-calico.conflist")])
                .unwrap(),
        );
        assert_eq!(container.conf("20-calico.conflist").unwrap(), DEFAULT);
        // Upstream's file from an earlier installation.
        container.file(&format!("{NET}/{FILE}"), DEFAULT).unwrap();
        succeeded(
            &container
                .run(&[("CNI_CONF_NAME", "30-calico.conflist")])
                .unwrap(),
        );
        assert_eq!(container.names(NET), ["30-calico.conflist"]);

        let strange =
            r#"{"cniVersion": "1.0.0", "name": "x", "plugins": [{"type": "cilium-cni"}]}"#;
        container
            .file(&format!("{NET}/05-cilium.conflist"), strange)
            .unwrap();
        let variables = [
            ("CNI_CONF_NAME", "30-calico.conflist"),
            ("CNI_OLD_CONF_NAME", "05-cilium.conflist"),
        ];
        let outcome = container.run(&variables).unwrap();
        succeeded(&outcome);
        logged(
            &outcome,
            "05-cilium.conflist, which CNI_OLD_CONF_NAME names: the file is not Calico's",
        );
        logged(
            &outcome,
            "05-cilium.conflist, not 30-calico.conflist: the first name wins",
        );
        assert_eq!(container.conf("05-cilium.conflist").unwrap(), strange);
    });
}

#[test]
fn custom_template_is_written_unchanged() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        let outcome = container.run(&[("CNI_NETWORK_CONFIG", "{}")]).unwrap();
        succeeded(&outcome);
        logged(&outcome, "the configuration contains no plugin");
        assert_eq!(container.conf(FILE).unwrap(), "{}");
    });
}

#[test]
fn configuration_file_takes_precedence_over_the_text_variable() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        let alternate = r#"{
    "name": "alternate",
    "type": "calico",
    "etcd_endpoints": "__ETCD_ENDPOINTS__",
    "etcd_key_file": "__ETCD_KEY_FILE__",
    "log_level": "info",
    "policy": {"k8s_api_root": "https://__KUBERNETES_SERVICE_HOST__:__KUBERNETES_SERVICE_PORT__"}
}"#;
        container
            .file(&format!("{NET}/alternate-config"), alternate)
            .unwrap();
        let variables = [
            (
                "CNI_NETWORK_CONFIG",
                "'oops, I used the CNI_NETWORK_CONFIG'",
            ),
            (
                "CNI_NETWORK_CONFIG_FILE",
                "/host/etc/cni/net.d/alternate-config",
            ),
            ("KUBERNETES_SERVICE_HOST", "127.0.0.1"),
            ("KUBERNETES_SERVICE_PORT", "6443"),
            ("CNI_TRY_SECONDS", "0"),
        ];
        succeeded(&container.run(&variables).unwrap());
        let expected = r#"{
    "name": "alternate",
    "type": "calico",
    "etcd_endpoints": "",
    "etcd_key_file": "",
    "log_level": "info",
    "policy": {"k8s_api_root": "https://127.0.0.1:6443"}
}"#;
        assert_eq!(container.conf(FILE).unwrap(), expected);
        failed(
            &container
                .run(&[("CNI_NETWORK_CONFIG_FILE", "/no/such/file")])
                .unwrap(),
            "CNI_NETWORK_CONFIG_FILE: cannot read",
        );
    });
}

#[test]
fn template_that_is_not_json_is_refused_without_changes() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        succeeded(&container.run(&[]).unwrap());
        let container = container.other_version().unwrap();
        let before = container.fingerprint();
        for (template, words) in [
            (r#"{"missing quote}"#, "is not valid JSON"),
            (r#"["secret-word"]"#, "is not a JSON object"),
            (
                r#"{"token": "secret-word", "mtu": }"#,
                "is not valid JSON (line 1, column 33",
            ),
        ] {
            let outcome = container.run(&[("CNI_NETWORK_CONFIG", template)]).unwrap();
            failed(&outcome, words);
            assert!(
                !outcome.stderr.contains("secret-word"),
                "{}",
                outcome.stderr
            );
        }
        assert_eq!(container.fingerprint(), before);
    });
}

/// With such a configuration, the plugin would fail every ADD.
#[test]
fn template_that_the_plugin_cannot_read_is_refused_without_changes() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        succeeded(&container.run(&[]).unwrap());
        let container = container.other_version().unwrap();
        container.file("calico-secrets/etcd-key", "key").unwrap();
        let before = container.fingerprint();
        let template = r#"{"plugins": [{"type": "portmap"}, {"type": "calico", "datastore_type": "nonsense"}]}"#;
        for (variable, words) in [
            (
                ("CNI_MTU", "99999"),
                "10-calico.conflist is not written, as Calico's plugin would reject it: ",
            ),
            (("CNI_MTU", "99999"), "$.mtu: found the number 99999"),
            (("CNI_NETWORK_CONFIG", template), "$.datastore_type: found"),
        ] {
            failed(&container.run(&[variable]).unwrap(), words);
        }
        assert_eq!(container.fingerprint(), before);
    });
}

#[test]
fn etcd_tls_files_are_copied_and_deleted_with_their_source() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        container
            .file("calico-secrets/.hidden", "doesn't matter")
            .unwrap();
        succeeded(&container.run(&[]).unwrap());
        assert_eq!(container.names(NET), [FILE]);

        container
            .file("calico-secrets/etcd-cert", "doesn't matter")
            .unwrap();
        let template = (
            "CNI_NETWORK_CONFIG",
            r#"{"etcd_cert": "__ETCD_CERT_FILE__", "etcd_key": "__ETCD_KEY_FILE__"}"#,
        );
        let outcome = container.run(&[template]).unwrap();
        succeeded(&outcome);
        logged(
            &outcome,
            "etcd-key is missing; the configuration is written without it",
        );
        assert_eq!(container.names(&format!("{NET}/calico-tls")), ["etcd-cert"]);
        let expected = r#"{"etcd_cert": "/etc/cni/net.d/calico-tls/etcd-cert", "etcd_key": ""}"#;
        assert_eq!(container.conf(FILE).unwrap(), expected);

        fs::remove_file(container.path("calico-secrets/etcd-cert")).unwrap();
        succeeded(&container.run(&[]).unwrap());
        assert_eq!(container.names(NET), [FILE]);
    });
}

#[test]
fn questionable_template_is_installed_with_warnings() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        container
            .file(&format!("{NET}/k8s-pod-network/10-more.conf"), "{}")
            .unwrap();
        let template = r#"{"name": "k8s-pod-network", "cniVersion": "1.0.0", "x": "__NO_SUCH__",
            "plugins": [{"type": "calico"}, {"type": "bandwidth"}]}"#;
        let variables = [
            ("CNI_NETWORK_CONFIG", template),
            ("CNI_CONF_NAME", "calico"),
            ("CNI_TRY_SECONDS", "0"),
        ];
        let outcome = container.run(&variables).unwrap();
        succeeded(&outcome);
        for words in [
            "__NO_SUCH__ is not a placeholder",
            "the plugin bandwidth is missing in",
            "use a name that ends in .conf, .conflist or .json",
            "k8s-pod-network/*.conf",
        ] {
            logged(&outcome, words);
        }
        assert_eq!(container.conf("calico").unwrap(), template);
    });
}
