//! Programs that exist but do not work or are not the expected ones.

use std::fs;

use integration_tests::installation::BIN;
use integration_tests::namespaces::isolated;
use integration_tests::plugin::Plugins;
use serde_json::json;

use crate::scene::{Break, Said, make_executable, on_a_good_node};

/// A program that responds to VERSION, and to `-v` as upstream's does.
const THEIRS: &str = r#"#!/bin/sh
if [ "$1" = -v ]; then echo v3.31.0; exit; fi
cat >/dev/null
echo '{"cniVersion":"1.0.0","supportedVersions":["0.3.1","1.0.0"]}'
"#;

#[test]
fn doctor_reports_hanging_and_replaced_programs() {
    on_a_good_node(|scene| {
        let bin = scene.pod.container.path(BIN);
        let (hangs, theirs) = ("#!/bin/sh\nexec sleep 1000\n", THEIRS);
        let dynamic = "#!/no/such/interpreter\n";
        for (name, script, found, words) in [
            ("portmap", hangs, "fail program portmap", "does not answer within 5s"),
            ("portmap", dynamic, "warn program portmap", "run `calico doctor` on the node"),
            ("portmap", theirs, "warn program portmap", "is not the installed file"),
            ("calico", theirs, "warn program calico", "calico v3.31.0, up to 1.0.0, is not the installed file"),
        ] {
            let (program, away) = (bin.join(name), bin.join("away"));
            let replace = || {
                fs::rename(&program, &away).unwrap();
                fs::write(&program, script).unwrap();
                make_executable(&program, true);
            };
            let title = format!("program {name}");
            Break { found: &[found], words: (&title, words) }.and_mend(scene, replace, || {
                fs::rename(&away, &program).unwrap();
            });
        }
        let notes = scene.pod.container.path("var/lib/calico/cni-install-state.json");
        let text = fs::read_to_string(&notes).unwrap();
        Break { found: &["warn installer's notes"], words: ("installer's notes", "cni-install-state.json is damaged") }
            .and_mend(scene, || fs::write(&notes, "{").unwrap(), || fs::write(&notes, &text).unwrap());
    });
}

/// GKE has its plugins in /home/kubernetes/bin.
#[test]
fn doctor_finds_programs_in_the_given_bin_dir() {
    isolated(|host| {
        let root = host.dir("node");
        let bin = root.join("home/kubernetes/bin");
        let net = root.join("etc/cni/net.d");
        for directory in [&bin, &net] {
            fs::create_dir_all(directory).unwrap();
        }
        fs::write(bin.join("portmap"), THEIRS).unwrap();
        make_executable(&bin.join("portmap"), true);
        let list = json!({ "name": "n", "cniVersion": "1.0.0", "plugins": [{ "type": "portmap" }] });
        fs::write(net.join("10-calico.conflist"), list.to_string()).unwrap();
        let doctor = |more: &[&str]| {
            let root = root.display().to_string();
            let call = Plugins::locate().unwrap().call("calico").args(["doctor", "-o", "json", "--root", &root]);
            Said::of(&call.args(more.iter().copied()).run().unwrap()).words("program portmap")
        };
        assert!(doctor(&[]).starts_with("the program is missing"), "{}", doctor(&[]));
        let found = doctor(&["--bin-dir", "/home/kubernetes/bin"]);
        assert!(found.contains("home/kubernetes/bin/portmap, up to 1.0.0"), "{found}");
    });
}
