//! `calico install` beside running neighbors, which act on every change in the configuration
//! directory. No neighbor loses its entry or its file.

use std::fs;
use std::slice;
use std::sync::atomic::Ordering;

use integration_tests::installation::{Container, NET};
use integration_tests::namespaces::isolated;
use integration_tests::neighbours::{
    CILIUM_CONF, CiliumAgent, ISTIO_OWNED, IstioAgent, LinkerdInstaller, MultusDaemon,
    MultusEntrypoint, Neighbour, OwnWrites, PodStarts, Program, Running, kinds, plugin, settle,
};
use integration_tests::plugin::Outcome;
use serde_json::Value;

use super::{DEFAULT, logged, succeeded};

const FILE: &str = "10-calico.conflist";

#[track_caller]
fn install(container: &Container, mtu: &str) -> Outcome {
    let outcome = container.run(&[("CNI_MTU", mtu)]).unwrap();
    succeeded(&outcome);
    outcome
}

/// Starts a program on the node's directory, and waits until it has acted.
#[track_caller]
fn started(container: &Container, program: impl Program + 'static) -> Running {
    let running = Running::start(program, &container.path(NET)).unwrap();
    settle(slice::from_ref(&running)).unwrap();
    running
}

/// Installs with each MTU, and waits until the neighbors have acted.
#[track_caller]
fn install_each(container: &Container, mtus: &[&str], neighbours: &[Running]) {
    for mtu in mtus {
        install(container, mtu);
        settle(neighbours).unwrap();
    }
}

fn own_writes(container: &Container) -> OwnWrites {
    OwnWrites::watch(&container.path(NET).join(FILE)).unwrap()
}

fn mtu(conf: &str) -> u64 {
    plugin(conf, "calico")["mtu"].as_u64().unwrap()
}

#[test]
fn each_change_beside_running_istio_and_linkerd_is_one_write() {
    isolated(|host| {
        let groups = [
            &[Neighbour::Istio][..],
            &[Neighbour::Linkerd],
            &Neighbour::ALL,
        ];
        for (number, neighbours) in groups.into_iter().enumerate() {
            let container = Container::new(host, &format!("c{number}")).unwrap();
            install(&container, "1500");
            let net = container.path(NET);
            let start = |neighbour: &Neighbour| match neighbour {
                Neighbour::Istio => Running::start(IstioAgent::default(), &net).unwrap(),
                Neighbour::Linkerd => Running::start(LinkerdInstaller::default(), &net).unwrap(),
            };
            let running: Vec<Running> = neighbours.iter().map(start).collect();
            settle(&running).unwrap();
            let mut writes = own_writes(&container);
            let pods: Vec<PodStarts> = neighbours
                .iter()
                .map(|other| PodStarts::watch(&net, other.kind()))
                .collect();

            install_each(&container, &["1400", "1400", "1300", "1300"], &running);
            assert_eq!(writes.count().unwrap(), 2, "{neighbours:?}");
            assert!(pods.into_iter().all(|pods| pods.end().unwrap() > 0));
            let text = container.conf(FILE).unwrap();
            assert_eq!(
                (kinds(&text).len(), mtu(&text)),
                (2 + neighbours.len(), 1300),
                "{text}"
            );
            // linkerd-cni writes the file at its start, and again with its entry. It then adds the
            // entry to each new file.
            let expected = match neighbours {
                [Neighbour::Istio] => Some(1),
                [Neighbour::Linkerd] => Some(4),
                _ => None,
            };
            assert!(
                expected.is_none_or(|expected| running[0].writes() == expected),
                "{running:?}"
            );
        }
    });
}

#[test]
fn entries_that_istio_and_linkerd_remove_at_their_end_stay_removed() {
    isolated(|host| {
        for neighbour in Neighbour::ALL {
            let container = Container::new(host, neighbour.kind()).unwrap();
            let file = container.path(NET).join(FILE);
            install(&container, "1500");
            neighbour.chains_into(&file).unwrap();
            install(&container, "1400");
            assert_eq!(
                kinds(&container.conf(FILE).unwrap()),
                ["calico", "portmap", neighbour.kind()]
            );
            neighbour.leaves(&file).unwrap();
            let mut writes = own_writes(&container);
            install_each(&container, &["1400", "1300", "1300"], &[]);
            assert_eq!(writes.count().unwrap(), 1);
            assert_eq!(kinds(&container.conf(FILE).unwrap()), ["calico", "portmap"]);
        }
    });
}

/// istio-cni in ambient mode with `istioOwnedCNIConfig`.
#[test]
fn configuration_that_istio_owns_follows_ours_and_ours_gets_no_entry() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        install(&container, "1500");
        let istio = started(&container, IstioAgent { is_owner: true });
        let mut writes = own_writes(&container);
        let pods = PodStarts::watch(&container.path(NET), Neighbour::Istio.kind());
        let outcome = install(&container, "1400");
        settle(slice::from_ref(&istio)).unwrap();
        logged(
            &outcome,
            "02-istio-cni.conflist, which runs Calico's plugin",
        );
        assert!(
            !outcome.stderr.contains("the first name wins"),
            "{}",
            outcome.stderr
        );
        assert!(pods.end().unwrap() > 0);
        assert_eq!((writes.count().unwrap(), istio.writes()), (1, 2));
        let (ours, owned) = (
            container.conf(FILE).unwrap(),
            container.conf(ISTIO_OWNED).unwrap(),
        );
        assert_eq!(kinds(&ours), ["calico", "portmap"]);
        assert_eq!(kinds(&owned), ["calico", "portmap", "istio-cni"]);
        assert_eq!((mtu(&ours), mtu(&owned)), (1400, 1400));
    });
}

/// Installs two changes beside Multus' daemon, which writes once at its start and `answers` times
/// afterwards. Returns the results of the installations.
#[track_caller]
fn install_beside(container: &Container, daemon: MultusDaemon, answers: usize) -> [Outcome; 2] {
    install(container, "1500");
    let exits = daemon.exits.clone();
    let multus = started(container, daemon);
    assert_eq!(container.names(NET), ["00-multus.conf", FILE]);
    let mut writes = own_writes(container);
    let pods = PodStarts::watch(&container.path(NET), "multus-shim");
    let outcomes = ["1400", "1300"].map(|mtu| {
        let outcome = install(container, mtu);
        settle(slice::from_ref(&multus)).unwrap();
        outcome
    });
    assert!(pods.end().unwrap() > 0);
    assert_eq!(exits.load(Ordering::SeqCst), 0);
    assert_eq!((writes.count().unwrap(), multus.writes()), (2, 1 + answers));
    assert_eq!(container.names(NET), ["00-multus.conf", FILE]);
    outcomes
}

#[test]
fn multus_daemon_answers_each_change_with_one_write() {
    isolated(|host| {
        install_beside(
            &Container::new(host, "c").unwrap(),
            MultusDaemon::default(),
            2,
        );
    });
}

/// The daemon ends when its `readinessindicatorfile` leaves the directory, which an exchange of two
/// files looks like.
#[test]
fn multus_daemon_with_our_file_as_its_readiness_indicator_goes_on() {
    isolated(|host| {
        for outcome in install_beside(
            &Container::new(host, "c").unwrap(),
            MultusDaemon::with_indicator(),
            0,
        ) {
            logged(&outcome, "00-multus.conf, which runs Calico's plugin");
            assert!(
                !outcome.stderr.contains("the first name wins"),
                "{}",
                outcome.stderr
            );
        }
    });
}

#[test]
fn version_that_multus_forces_is_restored_by_one_write() {
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        install(&container, "1500");
        let multus = started(&container, MultusDaemon::with_forced_version());
        let version = || {
            serde_json::from_str::<Value>(&container.conf(FILE).unwrap()).unwrap()["cniVersion"]
                .clone()
        };
        assert_eq!(version(), "0.3.1");
        let mut writes = own_writes(&container);
        install_each(&container, &["1500", "1500"], slice::from_ref(&multus));
        assert_eq!(
            (version(), writes.count().unwrap()),
            (Value::from("1.0.0"), 1)
        );
    });
}

/// The entry point writes a list for version 1.0.0 of the configuration, and else a single plugin.
#[test]
fn multus_entry_point_copies_each_change_and_renames_no_restored_file() {
    isolated(|host| {
        let cases = [
            (false, "1.0.0", 1),
            (true, "1.0.0", 3),
            (false, "1.1.0", 1),
            (true, "1.1.0", 3),
        ];
        for (renames, version, expected) in cases {
            let container = Container::new(host, &format!("renames-{renames}-{version}")).unwrap();
            let template = DEFAULT
                .replace("1.0.0", version)
                .replace("\"mtu\": 1500", "\"mtu\": __CNI_MTU__");
            let install = |mtu: &str| {
                let variables = [("CNI_NETWORK_CONFIG", template.as_str()), ("CNI_MTU", mtu)];
                succeeded(&container.run(&variables).unwrap());
            };
            install("1500");
            let multus = started(&container, MultusEntrypoint::new(renames));
            assert_eq!(container.path(NET).join(FILE).exists(), !renames);
            let mut writes = own_writes(&container);
            let pods = PodStarts::watch(&container.path(NET), "multus");
            for mtu in ["1500", "1500", "1400", "1400", "1400"] {
                install(mtu);
                settle(slice::from_ref(&multus)).unwrap();
            }
            assert!(pods.end().unwrap() > 0);
            assert_eq!(writes.count().unwrap(), expected);
            assert_eq!(mtu(&container.conf(FILE).unwrap()), 1400);
            let own = if version == "1.0.0" {
                "00-multus.conflist"
            } else {
                "00-multus.conf"
            };
            let copy = plugin(&container.conf(own).unwrap(), "multus");
            assert_eq!(mtu(&copy["delegates"][0].to_string()), 1400);
        }
    });
}

/// Cilium renames our file, and if it chains its plugin, reads the file under the new name.
#[test]
fn configuration_that_cilium_renames_is_written_once_for_each_change() {
    isolated(|host| {
        for chains in [true, false] {
            let container = Container::new(host, &format!("chains-{chains}")).unwrap();
            let net = container.path(NET);
            install(&container, "1500");
            let cilium = started(&container, CiliumAgent { chains });
            let renamed = format!("{FILE}.cilium_bak");
            assert_eq!(container.names(NET), [CILIUM_CONF, &renamed]);
            let mut writes = own_writes(&container);
            let pods = PodStarts::watch(&net, "cilium-cni");
            for mtu in ["1500", "1400", "1400"] {
                install_each(&container, &[mtu], slice::from_ref(&cilium));
                assert_eq!(container.names(NET), [CILIUM_CONF, &renamed]);
            }
            assert!(pods.end().unwrap() > 0);
            assert_eq!(
                (writes.count().unwrap(), cilium.writes()),
                (1, if chains { 4 } else { 3 })
            );
            assert_eq!(mtu(&container.conf(&renamed).unwrap()), 1400);
            let theirs = container.conf(CILIUM_CONF).unwrap();
            let expected: &[&str] = if chains {
                &["calico", "portmap", "cilium-cni"]
            } else {
                &["cilium-cni"]
            };
            assert_eq!(kinds(&theirs), expected);
            assert!(!chains || mtu(&theirs) == 1400, "{theirs}");

            drop(cilium);
            fs::remove_file(net.join(CILIUM_CONF)).unwrap();
            install(&container, "1400");
            assert!(
                net.join(FILE).is_file() && writes.count().unwrap() == 2,
                "Cilium has left"
            );
        }
    });
}
