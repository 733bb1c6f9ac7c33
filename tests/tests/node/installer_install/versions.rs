//! The versions of the CNI specification that the programs of a new configuration support.

use std::fs;

use integration_tests::installation::{BIN, Container, NET, OLD, OWN_BIN};
use integration_tests::namespaces::isolated;
use integration_tests::neighbours::kinds;

use super::{DEFAULT, failed, logged, succeeded};

const FILE: &str = "10-calico.conflist";

#[test]
fn configuration_with_a_program_that_lacks_its_version_is_refused_by_name() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        succeeded(&container.run(&[]).unwrap());
        container.program(&format!("{BIN}/portmap"), OLD).unwrap();
        let outcome = container.run(&[("CNI_MTU", "1400")]).unwrap();
        failed(
            &outcome,
            "10-calico.conflist is not written, as programs lack its cniVersion 1.0.0: ",
        );
        logged(&outcome, "host/opt/cni/bin/portmap supports 0.3.1, 0.4.0; ");
        assert_eq!(container.conf(FILE).unwrap(), DEFAULT);
        // The remedies are an older `cniVersion` in the template, and the program of the image.
        let older = DEFAULT.replace("\"1.0.0\"", "\"0.4.0\"");
        succeeded(&container.run(&[("CNI_NETWORK_CONFIG", &older)]).unwrap());
        assert_eq!(container.conf(FILE).unwrap(), older);
        succeeded(
            &container
                .run(&[("CNI_MTU", "1400"), ("UPDATE_CNI_BINARIES", "true")])
                .unwrap(),
        );
        assert!(container.conf(FILE).unwrap().contains("\"mtu\": 1400"));
    });
}

/// The installer has no list of our plugin's versions.
#[test]
fn configuration_newer_than_calicos_plugin_is_refused() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        let template = r#"{"name": "n", "cniVersion": "9.0.0", "plugins": [{"type": "calico"}]}"#;
        let variables = [("CNI_NETWORK_CONFIG", template), ("CNI_TRY_SECONDS", "0")];
        let outcome = container.run(&variables).unwrap();
        failed(
            &outcome,
            "10-calico.conflist is not written, as programs lack its cniVersion 9.0.0: ",
        );
        logged(&outcome, "host/opt/cni/bin/calico supports ");
        assert!(container.names(NET).is_empty());
    });
}

/// The missing interpreter stands for the dynamic linker of a dynamically linked program.
#[test]
fn configuration_with_a_program_that_gives_no_answer_is_written_with_a_warning() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        for (mtu, script, words) in [
            (
                "1400",
                "#!/no/such/interpreter\n",
                "error=cannot be run: No such file or directory",
            ),
            (
                "1300",
                "#!/bin/sh\nexec sleep 1000\n",
                "error=does not answer within 2s",
            ),
            (
                "1200",
                "#!/bin/sh\nexit 1\n",
                "error=does not answer VERSION (exit status: 1)",
            ),
        ] {
            container.script(&format!("{BIN}/portmap"), script).unwrap();
            let outcome = container.run(&[("CNI_MTU", mtu)]).unwrap();
            succeeded(&outcome);
            logged(&outcome, words);
            logged(&outcome, "run `calico doctor` on the node");
            logged(&outcome, "host/opt/cni/bin/portmap");
            assert!(
                container
                    .conf(FILE)
                    .unwrap()
                    .contains(&format!("\"mtu\": {mtu}"))
            );
        }
    });
}

#[test]
fn foreign_program_that_lacks_the_version_is_named_and_its_entry_stays() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        succeeded(&container.run(&[]).unwrap());
        let chained = DEFAULT.replace("\n  ]\n}", ",\n    {\"type\": \"mesh\"}\n  ]\n}");
        container.file(&format!("{NET}/{FILE}"), &chained).unwrap();
        container.program(&format!("{BIN}/mesh"), OLD).unwrap();
        for (mtu, name) in [("1400", FILE), ("1300", "05-calico.conflist")] {
            let outcome = container
                .run(&[("CNI_MTU", mtu), ("CNI_CONF_NAME", name)])
                .unwrap();
            succeeded(&outcome);
            logged(&outcome, "no pod starts with cniVersion 1.0.0: ");
            logged(&outcome, "host/opt/cni/bin/mesh supports 0.3.1, 0.4.0");
            assert_eq!(
                kinds(&container.conf(name).unwrap()),
                ["calico", "portmap", "mesh"]
            );
        }
    });
}

#[test]
fn plugin_that_is_asked_has_no_capability_and_no_secret_of_the_installer() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        let asked = container.path("asked");
        let script = format!(
            "#!/bin/sh\ngrep -E '^(CapPrm|CapEff|NoNewPrivs)' /proc/self/status >{asked}\nenv \
             >>{asked}\n",
            asked = asked.display()
        );
        container
            .script(&format!("{OWN_BIN}/portmap"), &script)
            .unwrap();
        succeeded(&container.run(&[("CNI_TRY_SECONDS", "0")]).unwrap());
        let text = fs::read_to_string(&asked).unwrap();
        let none = "CapPrm:\t0000000000000000\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\n";
        assert!(text.starts_with(none), "{text}");
        assert!(
            text.contains("CNI_COMMAND=VERSION\n") && !text.contains("KUBERNETES_NODE_NAME"),
            "{text}"
        );
    });
}
