//! Tests of the findings about the configuration that a runtime selects.

use super::*;

#[test]
fn missing_invalid_or_foreign_active_configuration_is_reported() {
    only("FAIL configuration: /etc/cni/net.d: no such", |snapshot| {
        snapshot.candidates = Err("no such directory".into())
    });
    only(
        "FAIL configuration: /etc/cni/net.d contains no .conf",
        |snapshot| {
            snapshot.candidates = Ok(Vec::new());
            snapshot.selected = None;
        },
    );
    only(
        "FAIL configuration: 10-calico.conflist: not valid",
        |snapshot| {
            snapshot.selected.as_mut().unwrap().content = Err("not valid".into());
        },
    );
    let other = |plugin: &str| {
        let plugin = plugin.to_owned();
        move |snapshot: &mut NodeSnapshot| {
            snapshot.candidates = Ok(vec![
                "05-other.conflist".into(),
                "10-calico.conflist".into(),
            ]);
            content(snapshot).plugins = vec![plugin];
            snapshot.selected.as_mut().unwrap().name = "05-other.conflist".into();
        }
    };
    let found = wrong(other("cilium-cni"));
    assert_eq!(
        found[0],
        "FAIL configuration: 05-other.conflist sorts first and is not Calico's: it runs cilium-cni"
    );
    assert_eq!(
        found[1],
        "warn other configurations: 10-calico.conflist after 05-other.conflist, never loaded"
    );
    let out = ways_out(other("cilium-cni"));
    assert!(
        out[0].starts_with("remove /etc/cni/net.d/05-other.conflist"),
        "{out:?}"
    );
    assert_eq!(
        out[1],
        "remove /etc/cni/net.d/10-calico.conflist only if the network of this node is to be that \
         of 05-other.conflist"
    );
}

#[test]
fn remedy_for_a_foreign_file_named_calico_does_not_name_the_file_twice() {
    let foreign = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        move |snapshot: &mut NodeSnapshot| {
            content(snapshot).plugins = vec!["bridge".into()];
            snapshot.selected.as_mut().unwrap().name = names[0].clone();
            snapshot.candidates = Ok(names);
        }
    };
    assert!(ways_out(foreign(&["05-calico.conf"]))[0].starts_with("run the installer again"));
    assert_eq!(
        ways_out(foreign(&["05-calico.conf", "10-calico.conflist"]))[0],
        "remove /etc/cni/net.d/05-calico.conf, or give 10-calico.conflist a name that sorts before \
         it"
    );
}

#[test]
fn missing_programs_of_another_network_are_not_reported() {
    let foreign = |snapshot: &mut NodeSnapshot| {
        content(snapshot).plugins = vec!["bridge".into()];
        content(snapshot).programs = vec!["bridge".into(), "firewall".into()];
        snapshot.selected.as_mut().unwrap().name = "87-podman-bridge.conflist".into();
        snapshot.candidates = Ok(vec!["87-podman-bridge.conflist".into()]);
        let like = snapshot.programs[0].clone();
        let missing = |name: &str| RequiredProgram {
            name: name.into(),
            state: ProgramState::Missing,
            ..like.clone()
        };
        snapshot.programs = ["bridge", "firewall"].map(missing).into();
    };
    let found = wrong(foreign);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].contains("it runs bridge; there is no configuration of Calico"),
        "{found:?}"
    );
}

#[test]
fn configuration_rejected_by_the_plugin_is_a_failure() {
    only(
        "FAIL configuration: 10-calico.conflist: Calico's plugin rejects the configuration ($.mtu: \
         why): every ADD",
        |snapshot| {
            content(snapshot).rejection = Some("$.mtu: why".into());
        },
    );
}

fn behind_multus(snapshot: &mut NodeSnapshot, delegate_names: &str) {
    snapshot.candidates = Ok(["00-multus.conf", "10-calico.conflist", "20-bridge.conf"]
        .map(str::to_owned)
        .into());
    let plugins = vec!["multus-shim".into()];
    let content = Content {
        network: "m".into(),
        plugins,
        delegate_names: vec![delegate_names.into()],
        ..Content::default()
    };
    let multus = SelectedConfig {
        name: "00-multus.conf".into(),
        content: Ok(content),
    };
    snapshot.delegate = snapshot.selected.replace(multus);
}

#[test]
fn behind_multus_no_remedy_removes_calicos_configuration() {
    for delegate_names in ["k8s-pod-network", "10-calico", "10-calico.conflist"] {
        let mut snapshot = good();
        behind_multus(&mut snapshot, delegate_names);
        let found = run_all(&snapshot);
        assert!(
            found.iter().all(|finding| finding.state == Severity::Ok),
            "{found:?}"
        );
        assert!(found[0].observation.starts_with(
            "00-multus.conf runs multus-shim; behind it 10-calico.conflist: network k8s"
        ));
        assert_eq!(
            found[1].observation,
            "20-bridge.conf after 00-multus.conf, never loaded"
        );
    }
    only(
        "warn configuration: 00-multus.conf runs multus-shim; behind it 10-calico",
        |snapshot| behind_multus(snapshot, "other"),
    );
    only(
        "FAIL configuration: 10-calico.conflist: Calico's plugin rejects the configuration",
        |snapshot| {
            content(snapshot).rejection = Some("why".into());
            behind_multus(snapshot, "10-calico");
        },
    );
    only(
        "FAIL configuration: 10-calico.conflist, behind 00-multus.conf: not valid",
        |snapshot| {
            snapshot.selected.as_mut().unwrap().content = Err("not valid".into());
            behind_multus(snapshot, "10-calico");
        },
    );
    only(
        "FAIL placeholders: 10-calico.conflist still has",
        |snapshot| {
            content(snapshot).problems = vec![template::ConfigProblem::Placeholder("__X__".into())];
            behind_multus(snapshot, "10-calico");
        },
    );
}

/// Returns the remedies of all findings after `change` to a node without problems.
fn ways_out(change: impl FnOnce(&mut NodeSnapshot)) -> Vec<String> {
    let mut snapshot = good();
    change(&mut snapshot);
    run_all(&snapshot)
        .into_iter()
        .map(|finding| finding.remedy)
        .filter(|remedy| !remedy.is_empty())
        .collect()
}

#[test]
fn inactive_configurations_are_reported_and_warned_about_only_if_calicos() {
    let mut snapshot = good();
    snapshot.candidates = Ok(vec!["10-calico.conflist".into(), "99-bridge.conf".into()]);
    assert!(
        run_all(&snapshot).iter().any(|finding| finding.observation
            == "99-bridge.conf after 10-calico.conflist, never loaded")
    );
    only("warn other configurations", |snapshot| {
        snapshot.candidates = Ok(vec![
            "10-calico.conflist".into(),
            "20-calico.conflist".into(),
        ]);
    });
}

/// istio-cni and Cilium can copy Calico's configuration into one of their own.
#[test]
fn copies_of_calicos_configuration_are_accepted() {
    for (name, plugin) in [
        ("02-istio-cni.conflist", "istio-cni"),
        ("05-cilium.conflist", "cilium-cni"),
    ] {
        let mut snapshot = good();
        snapshot.candidates = Ok(vec![name.into(), "10-calico.conflist".into()]);
        content(&mut snapshot).plugins.push(plugin.into());
        snapshot.selected.as_mut().unwrap().name = name.into();
        let found = run_all(&snapshot);
        assert!(
            found.iter().all(|finding| finding.state == Severity::Ok),
            "{found:?}"
        );
        let copied =
            format!("10-calico.conflist after {name}, which is a copy of 10-calico.conflist");
        assert!(
            found.iter().any(|finding| finding.observation == copied),
            "{found:?}"
        );
    }
}

#[test]
fn remedy_names_chaining_if_only_ciliums_configuration_is_there() {
    let out = ways_out(|snapshot| {
        snapshot.candidates = Ok(vec!["05-cilium.conflist".into()]);
        content(snapshot).plugins = vec!["cilium-cni".into()];
        snapshot.selected.as_mut().unwrap().name = "05-cilium.conflist".into();
    });
    assert_eq!(
        out[0],
        "chain Cilium to Calico (cni.chainingMode), or remove Cilium"
    );
}

#[test]
fn configuration_problems_are_reported() {
    only(
        "FAIL placeholders: 10-calico.conflist still has __X__",
        |snapshot| {
            content(snapshot).problems = vec![template::ConfigProblem::Placeholder("__X__".into())];
        },
    );
    only("FAIL cniVersion: ", |snapshot| {
        content(snapshot).problems = vec![template::ConfigProblem::TooNew("2.0.0".into())];
    });
    only(
        "warn appended plugins: libcni appends 10-x.conf",
        |snapshot| {
            content(snapshot).appended = vec!["10-x.conf".into()];
        },
    );
}
