//! Entries that other programs chain into a valid configuration remain there, however our entries
//! change.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use integration_tests::installation::{Container, NET};
use integration_tests::namespaces::isolated;
use integration_tests::neighbours::{Neighbour, UPSTREAM_CONF, kinds, plugin};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use serde_json::{Value, json};

use super::{DEFAULT, logged, succeeded};

const FILE: &str = "10-calico.conflist";
const STATE: &str = "var/lib/calico/cni-install-state.json";

/// Returns our configuration as an earlier release rendered it.
fn earlier() -> String {
    DEFAULT
        .replace("      \"require_mtu_file\": false,\n", "")
        .replace("1500", "1480")
}

fn path(container: &Container) -> PathBuf {
    container.path(NET).join(FILE)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// Installs, and asserts that each neighbor's entry is unchanged.
#[track_caller]
fn installed_beside(container: &Container, variables: &[(&str, &str)], expected: &[&str]) {
    succeeded(&container.run(variables).unwrap());
    let text = container.conf(FILE).unwrap();
    assert_eq!(kinds(&text), expected, "{text}");
    for neighbour in Neighbour::ALL
        .into_iter()
        .filter(|neighbour| expected.contains(&neighbour.kind()))
    {
        assert_eq!(plugin(&text, neighbour.kind()), neighbour.entry());
        assert_eq!(mode(&path(container)), 0o644, "as it wrote it");
    }
    let before = container.fingerprint();
    succeeded(&container.run(variables).unwrap());
    assert_eq!(container.fingerprint(), before);
}

#[test]
fn install_without_a_state_file_keeps_chained_plugins_of_other_programs() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        for there in [UPSTREAM_CONF.to_owned(), earlier()] {
            for neighbours in [
                &[][..],
                &[Neighbour::Istio],
                &[Neighbour::Linkerd],
                &Neighbour::ALL,
            ] {
                for note in [None, Some("{"), Some("{}")] {
                    container.file(&format!("{NET}/{FILE}"), &there).unwrap();
                    neighbours
                        .iter()
                        .for_each(|neighbour| neighbour.chains_into(&path(&container)).unwrap());
                    let _ = fs::remove_file(container.path(STATE));
                    note.iter()
                        .for_each(|note| drop(container.file(STATE, note).unwrap()));
                    let others = neighbours.iter().map(|neighbour| neighbour.kind());
                    let expected: Vec<&str> =
                        ["calico", "portmap"].into_iter().chain(others).collect();
                    installed_beside(&container, &[], &expected);
                    let conf: Value = serde_json::from_str(&container.conf(FILE).unwrap()).unwrap();
                    let ours: Value = serde_json::from_str(DEFAULT).unwrap();
                    assert_eq!(conf["plugins"][0], ours["plugins"][0]);
                    assert_eq!(conf["cniVersion"], "1.0.0");
                }
            }
        }
    });
}

#[test]
fn changed_configuration_or_version_keeps_the_order_of_chained_plugins() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        succeeded(&container.run(&[]).unwrap());
        Neighbour::Istio.chains_into(&path(&container)).unwrap();
        // An entry added by hand, equal to an entry of upstream's template.
        let mut conf: Value = serde_json::from_str(&container.conf(FILE).unwrap()).unwrap();
        let bandwidth = json!({ "type": "bandwidth", "capabilities": { "bandwidth": true } });
        conf["plugins"]
            .as_array_mut()
            .unwrap()
            .insert(1, bandwidth.clone());
        conf["disableCheck"] = json!(true);
        fs::write(path(&container), conf.to_string()).unwrap();
        let expected = ["calico", "bandwidth", "portmap", "istio-cni"];
        installed_beside(&container, &[], &expected);

        let other = container.other_version().unwrap();
        installed_beside(&other, &[("CNI_MTU", "1400")], &expected);
        let text = container.conf(FILE).unwrap();
        assert_eq!(
            (&plugin(&text, "calico")["mtu"], plugin(&text, "bandwidth")),
            (&json!(1400), bandwidth)
        );
        fs::write(path(&container), text.replace("1400", "9000")).unwrap();
        installed_beside(&container, &[("CNI_MTU", "1400")], &expected);
        let text = container.conf(FILE).unwrap();
        assert_eq!(plugin(&text, "calico")["mtu"], 1400);
        assert_eq!(
            serde_json::from_str::<Value>(&text).unwrap()["disableCheck"],
            true
        );

        let with_tuning = DEFAULT.replace("\n  ]\n}", ",\n{\"type\": \"tuning\"}\n  ]\n}");
        installed_beside(
            &container,
            &[("CNI_NETWORK_CONFIG", &with_tuning)],
            &["calico", "bandwidth", "portmap", "tuning", "istio-cni"],
        );
        installed_beside(&container, &[], &expected);
        let mut conf: Value = serde_json::from_str(&container.conf(FILE).unwrap()).unwrap();
        conf["plugins"]
            .as_array_mut()
            .unwrap()
            .retain(|plugin| plugin["type"] != "istio-cni");
        fs::write(path(&container), conf.to_string()).unwrap();
        installed_beside(
            &container,
            &[("CNI_MTU", "1300")],
            &["calico", "bandwidth", "portmap"],
        );
    });
}

/// An older release drops fields of the state file that it does not know, such as `renderings`.
#[test]
fn install_after_a_release_without_plugin_records_keeps_chained_plugins() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        let custom = DEFAULT.replace("\n  ]\n}", ",\n{\"type\": \"tuning\"}\n  ]\n}");
        let forget = || {
            let mut state: Value =
                serde_json::from_slice(&fs::read(container.path(STATE)).unwrap()).unwrap();
            let noted = state["files"]["net"][FILE].as_object_mut().unwrap();
            assert!(noted.remove("renderings").is_some());
            assert!(noted["digest"].is_string());
            fs::write(container.path(STATE), state.to_string()).unwrap();
        };
        succeeded(&container.run(&[("CNI_NETWORK_CONFIG", &custom)]).unwrap());
        forget();
        // The file still has the digest that the state records.
        installed_beside(&container, &[], &["calico", "portmap"]);
        Neighbour::Istio.chains_into(&path(&container)).unwrap();
        forget();
        installed_beside(
            &container,
            &[("CNI_MTU", "1400")],
            &["calico", "portmap", "istio-cni"],
        );
    });
}

#[test]
fn renamed_configuration_keeps_chained_plugins_of_other_programs() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        let old = path(&container);
        for (is_noted, name) in [(false, "05-calico.conflist"), (true, "20-calico.conflist")] {
            if !is_noted {
                fs::write(&old, UPSTREAM_CONF).unwrap();
            }
            Neighbour::Istio.chains_into(&old).unwrap();
            succeeded(
                &container
                    .run(&[
                        ("CNI_CONF_NAME", name),
                        ("CNI_OLD_CONF_NAME", if is_noted { "" } else { FILE }),
                    ])
                    .unwrap(),
            );
            assert_eq!(container.names(NET), [name]);
            let text = container.conf(name).unwrap();
            assert_eq!(kinds(&text), ["calico", "portmap", "istio-cni"], "{text}");
            succeeded(&container.run(&[]).unwrap());
            assert_eq!(container.names(NET), [FILE]);
            assert_eq!(
                kinds(&container.conf(FILE).unwrap()),
                ["calico", "portmap", "istio-cni"]
            );
        }
    });
}

/// A runtime reads no list from `.conf`, and no single plugin from `.conflist`.
#[test]
fn conf_file_converted_to_a_list_by_a_neighbor_is_not_written_again() {
    isolated(|host| {
        let single = r#"{"name": "k8s-pod-network", "cniVersion": "1.0.0", "type": "calico", "mtu": __CNI_MTU__}"#;
        for neighbour in Neighbour::ALL {
            let container = Container::new(host, neighbour.kind()).unwrap();
            let file = container.path(NET).join("10-calico.conf");
            let install = |mtu| {
                let variables = [
                    ("CNI_CONF_NAME", "10-calico.conf"),
                    ("CNI_NETWORK_CONFIG", single),
                    ("CNI_TRY_SECONDS", "0"),
                    ("CNI_MTU", mtu),
                ];
                succeeded(&container.run(&variables).unwrap());
            };
            install("1400");
            assert_eq!(
                fs::read_to_string(&file).unwrap(),
                single.replace("__CNI_MTU__", "1400")
            );
            neighbour.chains_into(&file).unwrap();
            for mtu in ["1400", "1300"] {
                install(mtu);
                assert_eq!(container.names(NET), [FILE]);
                let text = container.conf(FILE).unwrap();
                assert_eq!(kinds(&text), ["calico", neighbour.kind()], "{text}");
                assert_eq!(plugin(&text, "calico")["mtu"].to_string(), mtu);
            }
            let before = container.fingerprint();
            install("1300");
            assert_eq!(container.fingerprint(), before);
        }
    });
}

#[test]
fn invalid_configuration_is_replaced_and_a_second_calico_entry_refused() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        for damaged in [
            "",
            "{\"plugins\": [",
            "[]",
            r#"{"plugins": "calico"}"#,
            r#"{"plugins": [{"type": "cilium-cni"}]}"#,
        ] {
            container.file(&format!("{NET}/{FILE}"), damaged).unwrap();
            succeeded(&container.run(&[]).unwrap());
            assert_eq!(container.conf(FILE).unwrap(), DEFAULT, "{damaged}");
        }
        let twice = r#"{"name": "n", "plugins": [{"type": "calico"}, {"type": "portmap"}, {"type": "calico"}]}"#;
        super::failed(
            &container.run(&[("CNI_NETWORK_CONFIG", twice)]).unwrap(),
            "the plugin calico occurs twice",
        );
        assert_eq!(container.conf(FILE).unwrap(), DEFAULT);
        Neighbour::Istio.chains_into(&path(&container)).unwrap();
        let outcome = container.run(&[]).unwrap();
        logged(&outcome, "keeping the plugins of other programs: istio-cni");
    });
}

/// The installer repeatedly changes our entry while a neighbor checks its own.
#[test]
fn install_beside_a_self_restoring_neighbor_never_drops_its_entry() {
    isolated(|host| {
        const RUNS: usize = 12;
        let container = Container::new(host, "c").unwrap();
        succeeded(&container.run(&[]).unwrap());
        let file = path(&container);
        let (done, puts, looks) = (
            AtomicBool::new(false),
            AtomicUsize::new(0),
            AtomicUsize::new(0),
        );
        let has_entry =
            || kinds(&fs::read_to_string(&file).unwrap()).contains(&"istio-cni".to_owned());
        let neighbour = || {
            if !has_entry() {
                Neighbour::Istio.chains_into(&file).unwrap();
                puts.fetch_add(1, Ordering::SeqCst);
            }
        };
        neighbour();
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK).unwrap();
        inotify
            .add_watch(&container.path(NET), AddWatchFlags::IN_MOVED_TO)
            .unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    neighbour();
                    thread::sleep(Duration::from_millis(1));
                }
            });
            scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    assert!(has_entry());
                    looks.fetch_add(1, Ordering::SeqCst);
                }
            });
            for run in 0..RUNS {
                let mtu = (1400 + run / 2).to_string();
                let outcome = container.run(&[("CNI_MTU", &mtu)]).unwrap();
                if outcome.exit != Some(0) || run + 1 == RUNS {
                    done.store(true, Ordering::SeqCst);
                }
                succeeded(&outcome);
            }
        });
        let moved = inotify.read_events().unwrap();
        let writes = moved
            .iter()
            .filter(|event| event.name.as_ref().is_some_and(|name| name == FILE))
            .count();
        assert_eq!(
            (writes, puts.load(Ordering::SeqCst)),
            (RUNS / 2, 1),
            "a write for each new configuration, and no other"
        );
        assert!(looks.load(Ordering::SeqCst) > RUNS);
    });
}
