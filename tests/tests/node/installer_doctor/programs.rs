//! Programs that exist but do not work or are not the expected ones.

use std::fs;
use std::path::PathBuf;

use integration_tests::installation::{BIN, Container};
use integration_tests::namespaces::{Host, isolated};
use serde_json::json;

use crate::installer_doctor::files::make_executable;
use crate::installer_doctor::kubernetes_node::{KubernetesNode, on};
use crate::installer_doctor::report::{assert_reported, doctor};

/// A program that responds to VERSION, and to `-v` as upstream's does.
const THEIRS: &str = r#"#!/bin/sh
if [ "$1" = -v ]; then echo v3.31.0; exit; fi
cat >/dev/null
echo '{"cniVersion":"1.0.0","supportedVersions":["0.3.1","1.0.0"]}'
"#;

#[on(kubernetes_v1)]
fn doctor_reports_hanging_and_replaced_programs(node: &mut KubernetesNode<'_>) {
    let bin = node.pod.container.path(BIN);
    let (hangs, theirs) = ("#!/bin/sh\nexec sleep 1000\n", THEIRS);
    let dynamic = "#!/no/such/interpreter\n";
    for (name, script, found, words) in [
        (
            "portmap",
            hangs,
            "fail program portmap",
            "does not answer within 5s",
        ),
        (
            "portmap",
            dynamic,
            "warn program portmap",
            "run `calico doctor` on the node",
        ),
        (
            "portmap",
            theirs,
            "warn program portmap",
            "is not the installed file",
        ),
        (
            "calico",
            theirs,
            "warn program calico",
            "calico v3.31.0, up to 1.0.0, is not the installed file",
        ),
    ] {
        let (program, away) = (bin.join(name), bin.join("away"));
        let replace = || {
            fs::rename(&program, &away).unwrap();
            fs::write(&program, script).unwrap();
            make_executable(&program, true);
        };
        let title = format!("program {name}");
        assert_reported(node, &[found], (&title, words), replace, || {
            fs::rename(&away, &program).unwrap();
        });
    }
    let notes = node
        .pod
        .container
        .path("var/lib/calico/cni-install-state.json");
    let text = fs::read_to_string(&notes).unwrap();
    assert_reported(
        node,
        &["warn installer's notes"],
        ("installer's notes", "cni-install-state.json is damaged"),
        || fs::write(&notes, "{").unwrap(),
        || fs::write(&notes, &text).unwrap(),
    );
}

/// Creates a node whose configuration names `portmap`, and writes this program. Returns the node's
/// root.
fn node_with_portmap(host: &Host, bin: &str, script: &str) -> PathBuf {
    let root = host.dir("node");
    let (bin, net) = (root.join(bin), root.join("etc/cni/net.d"));
    for directory in [&bin, &net] {
        fs::create_dir_all(directory).unwrap();
    }
    fs::write(bin.join("portmap"), script).unwrap();
    make_executable(&bin.join("portmap"), true);
    let list = json!({ "name": "n", "cniVersion": "1.0.0", "plugins": [{ "type": "portmap" }] });
    fs::write(net.join("10-calico.conflist"), list.to_string()).unwrap();
    root
}

/// GKE has its plugins in /home/kubernetes/bin.
#[test]
fn doctor_finds_programs_in_the_given_bin_dir() {
    isolated(|host| {
        let root = node_with_portmap(host, "home/kubernetes/bin", THEIRS);
        let words = |more: &[&str]| doctor(&root, more).words("program portmap");
        assert!(
            words(&[]).starts_with("the program is missing"),
            "{}",
            words(&[])
        );
        let found = words(&["--bin-dir", "/home/kubernetes/bin"]);
        assert!(
            found.contains("home/kubernetes/bin/portmap, up to 1.0.0"),
            "{found}"
        );
    });
}

#[test]
fn doctor_on_a_node_reports_a_program_without_the_version_of_the_configuration() {
    isolated(|host| {
        let old = THEIRS.replace(r#""0.3.1","1.0.0""#, r#""0.3.1","0.4.0""#);
        let report = doctor(&node_with_portmap(host, "opt/cni/bin", &old), &[]);
        assert_eq!(report.exit, Some(1), "{report:#?}");
        assert!(
            report.wrong().contains(&"fail program portmap".to_owned()),
            "{report:#?}"
        );
        let words = report.words("program portmap");
        assert!(
            words.contains(
                "opt/cni/bin/portmap does not support cniVersion 1.0.0, but 0.3.1, 0.4.0"
            ),
            "{words}"
        );
        assert!(words.contains("install a newer program"), "{words}");
    });
}

#[test]
fn doctor_on_a_node_names_the_files_that_remain_in_former_directories() {
    const MOVED: [(&str, &str); 3] = [
        ("CNI_BIN_DIR", "/srv/cni/bin"),
        ("CNI_NET_DIR", "/srv/cni/net.d"),
        ("CNI_TRY_SECONDS", "0"),
    ];
    const FORMER: [(&str, &str); 2] = [
        ("CNI_FORMER_BIN_DIR", "/opt/cni/bin"),
        ("CNI_FORMER_NET_DIR", "/etc/cni/net.d"),
    ];
    isolated(|host| {
        let node = Container::new(host, "node").unwrap();
        // Without a directory `host`, the root is the node's.
        fs::remove_dir_all(node.path("host")).unwrap();
        for directory in ["etc/cni/net.d", "srv/cni/bin", "srv/cni/net.d"] {
            fs::create_dir_all(node.path(directory)).unwrap();
        }
        node.program("srv/cni/bin/portmap", "first").unwrap();
        let install = |variables: &[(&str, &str)]| {
            let outcome = node.run(variables).unwrap();
            assert_eq!(outcome.exit, Some(0), "{}", outcome.stderr);
        };
        let former = || doctor(&node.path(""), &["--bin-dir", "/srv/cni/bin"]);
        install(&[("CNI_TRY_SECONDS", "0")]);
        install(&MOVED);
        let report = former();
        let words = report.words("former directories");
        assert!(
            report
                .wrong()
                .contains(&"warn former directories".to_owned()),
            "{report:#?}"
        );
        assert!(
            words.starts_with("3 files of an earlier installation remain in other directories: "),
            "{words}"
        );
        for file in [
            "/opt/cni/bin/calico, ",
            "/opt/cni/bin/calico-ipam",
            "/etc/cni/net.d/10-calico.conflist",
        ] {
            assert!(words.contains(file), "{words}");
        }
        assert!(
            words.contains("mount these directories as the former ones"),
            "{words}"
        );
        install(&[&MOVED[..], &FORMER[..]].concat());
        assert!(!former().checks.contains_key("former directories"));
    });
}
