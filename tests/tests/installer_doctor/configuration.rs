//! The configuration that a runtime selects.

use std::fs;

use integration_tests::installation::{BIN, NET};

use crate::scene::{Break, Examined, make_executable, on_a_good_node};

#[test]
fn doctor_reports_each_defect_of_the_configuration() {
    on_a_good_node(|scene| {
        let net = scene.pod.container.path(NET);
        let without_ours = [
            "fail configuration",
            "skipped MTU",
            "skipped datastore",
            "skipped nodename",
        ];
        let other = net.join("05-other.conflist");
        let list = r#"{"name":"other","cniVersion":"0.3.1","plugins":[{"type":"portmap"}]}"#;
        let found: Vec<&str> = without_ours
            .into_iter()
            .chain(["warn other configurations"])
            .collect();
        Break {
            found: &found,
            words: ("configuration", "sorts first and is not Calico's"),
        }
        .and_mend(
            scene,
            || fs::write(&other, list).unwrap(),
            || fs::remove_file(&other).unwrap(),
        );

        let conf = net.join("10-calico.conflist");
        let text = fs::read_to_string(&conf).unwrap();
        let write = |text: &str| fs::write(&conf, text).unwrap();
        Break {
            found: &without_ours,
            words: ("configuration", "is not valid JSON"),
        }
        .and_mend(scene, || write(&text[..100]), || write(&text));
        let marked = text.replace("\"log_level\": \"info\"", "\"log_level\": \"__NOBODY__\"");
        assert_ne!(marked, text);
        Break {
            found: &["fail placeholders"],
            words: ("placeholders", "__NOBODY__"),
        }
        .and_mend(scene, || write(&marked), || write(&text));
        let appended = net.join("k8s-pod-network");
        let append = || {
            fs::create_dir(&appended).unwrap();
            fs::write(appended.join("10-more.conf"), "{}").unwrap();
        };
        Break {
            found: &["warn appended plugins"],
            words: ("appended plugins", "10-more.conf"),
        }
        .and_mend(scene, append, || fs::remove_dir_all(&appended).unwrap());
    });
}

/// `CNI_MTU=99999` is valid JSON but not a valid MTU.
#[test]
fn doctor_reports_a_configuration_that_the_plugin_refuses() {
    on_a_good_node(|scene| {
        let conf = scene.pod.container.path(NET).join("10-calico.conflist");
        let text = fs::read_to_string(&conf).unwrap();
        let refused = text.replace("\"mtu\": 1500", "\"mtu\": 99999");
        assert_ne!(refused, text);
        let found = [
            "fail configuration",
            "skipped MTU",
            "skipped datastore",
            "skipped nodename",
        ];
        Break {
            found: &found,
            words: ("configuration", "$.mtu"),
        }
        .and_mend(
            scene,
            || fs::write(&conf, refused).unwrap(),
            || fs::write(&conf, &text).unwrap(),
        );
    });
}

/// doctor examines Calico's configuration too, and does not advise removing Multus.
#[test]
fn doctor_examines_calicos_configuration_behind_multus() {
    on_a_good_node(|scene| {
        let (net, bin) = (scene.pod.container.path(NET), scene.pod.container.path(BIN));
        let (file, shim) = (net.join("00-multus.conf"), bin.join("multus-shim"));
        fs::copy(bin.join("portmap"), &shim).unwrap();
        make_executable(&shim, true);
        let write = |calls: &str| {
            let conf = r#"{"name":"multus","cniVersion":"0.3.1","type":"multus-shim","clusterNetwork":"CALLS"}"#;
            fs::write(&file, conf.replace("CALLS", calls)).unwrap();
        };
        let words = (
            "configuration",
            "delegates to the network of 10-calico.conflist",
        );
        Break {
            found: &["warn configuration"],
            words,
        }
        .and_mend(
            scene,
            || write("another"),
            || write("/host/etc/cni/net.d/10-calico.conflist"),
        );
        let named = [
            "configuration",
            "program multus-shim",
            "program calico",
            "program calico-ipam",
            "token",
            "pools",
        ];
        let said = scene.doctor();
        assert!(
            named.iter().all(|name| said.checks.contains_key(*name)),
            "{said:#?}"
        );
        fs::remove_file(&file).unwrap();
    });
}
