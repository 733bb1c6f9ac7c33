use std::fs::{self, Permissions};

use super::*;

const OURS: &str = r#"{"name":"k8s-pod-network","cniVersion":"1.0.0","plugins":[{"type":"calico","nodename":"n1",
    "datastore_type":"local","ipam":{"type":"calico-ipam"}}]}"#;

fn read(files: &[(&str, &str)]) -> Configurations {
    let root = tempfile::tempdir().unwrap();
    let net_dir = root.path().join("etc/cni/net.d");
    fs::create_dir_all(&net_dir).unwrap();
    for (name, text) in files {
        fs::write(net_dir.join(name), text).unwrap();
    }
    let names = conflist::candidates(&net_dir).map_err(Unobserved::new);
    super::read(&names, &Layout::below(root.path()), "/etc/cni/net.d")
}

fn content(selected: Option<SelectedConfig>) -> Content {
    selected.unwrap().content.unwrap()
}

#[test]
fn configuration_rejected_by_the_plugin_retains_the_reason() {
    let bad = OURS.replace("\"nodename\"", "\"mtu\":99999,\"nodename\"");
    let found = read(&[("10-calico.conflist", &bad)]);
    assert!(found.conf.is_none());
    let rejection = content(found.selected).rejection.unwrap();
    assert!(
        rejection.contains("$.mtu") && rejection.contains("99999"),
        "{rejection}"
    );
    let theirs = content(
        read(&[(
            "05-other.conf",
            r#"{"name":"other","type":"ptp","mtu":99999}"#,
        )])
        .selected,
    );
    assert_eq!(theirs.rejection, None);
}

#[test]
fn calico_configuration_behind_multus_is_active() {
    for (multus, delegate_names) in [
        (
            r#"{"name":"m","type":"multus-shim","clusterNetwork":"/host/etc/cni/net.d/10-calico.conflist"}"#,
            "10-calico.conflist",
        ),
        (
            r#"{"name":"m","type":"multus","delegates":[{"name":"k8s-pod-network","plugins":[]}]}"#,
            "k8s-pod-network",
        ),
    ] {
        let others = ("05-bridge.conf", r#"{"name":"b","type":"bridge"}"#);
        let found = read(&[
            ("00-multus.conf", multus),
            others,
            ("10-calico.conflist", OURS),
        ]);
        assert_eq!(found.conf.unwrap().node.nodename, "n1");
        assert_eq!(found.delegate.as_ref().unwrap().name, "10-calico.conflist");
        assert_eq!(content(found.delegate).network, "k8s-pod-network");
        assert_eq!(content(found.selected).delegate_names, [delegate_names]);
    }
    let damaged = read(&[
        ("00-multus.conf", r#"{"name":"m","type":"multus"}"#),
        ("10-calico.conflist", "{"),
    ]);
    assert!(damaged.delegate.unwrap().content.is_err());
}

#[test]
fn configuration_behind_a_plugin_other_than_multus_is_ignored() {
    let found = read(&[
        ("05-other.conf", r#"{"name":"o","type":"ptp"}"#),
        ("10-calico.conflist", OURS),
    ]);
    assert!(found.delegate.is_none() && found.conf.is_none());
    let alone = read(&[("00-multus.conf", r#"{"name":"m","type":"multus"}"#)]);
    assert!(alone.delegate.is_none() && alone.conf.is_none());
    assert!(read(&[]).selected.is_none());
}

#[test]
fn missing_unreadable_and_invalid_tls_files_are_reported() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str, mode: u32| {
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path.display().to_string()
    };
    let key = file(
        "key",
        "-----BEGIN EC PRIVATE KEY-----\nx\n-----END EC PRIVATE KEY-----\n",
        0o600,
    );
    let certificate = file("cert", "words\n-----BEGIN CERTIFICATE-----\nx\n", 0o644);
    let mut conf = NetConf::default();
    conf.datastore.etcd_ca_cert_file = directory.path().join("gone").display().to_string();
    conf.datastore.etcd_cert_file = key.clone();
    conf.datastore.etcd_key_file = key;
    let found = tls_files(&conf);
    assert!(
        found[0]
            .mode
            .as_ref()
            .unwrap_err()
            .to_string()
            .contains("No such file"),
        "{found:?}"
    );
    assert_eq!(
        found[1].mode,
        Err("the file contains no CERTIFICATE".into())
    );
    assert_eq!(found[2].mode, Ok(0o600));
    conf.datastore.etcd_cert_file = certificate.clone();
    conf.datastore.etcd_key_file = certificate;
    let found = tls_files(&conf);
    assert_eq!(found[1].mode, Ok(0o644));
    assert_eq!(
        found[2].mode,
        Err("the file contains no PRIVATE KEY".into())
    );
    assert!(tls_files(&NetConf::default()).is_empty());
}

fn program(directory: &Path, name: &str, script: &str, mode: u32) {
    fs::write(
        directory.join(name),
        format!("#!/bin/sh\ncat >/dev/null\n{script}\n"),
    )
    .unwrap();
    fs::set_permissions(directory.join(name), fs::Permissions::from_mode(mode)).unwrap();
}

/// Returns a probe whose first directory does not exist.
fn probe<'a>(here: &Path, recorded: Option<&'a State>) -> VersionProbe<'a> {
    let directories = vec![
        (DirectoryRole::SecondaryBin, PathBuf::from("/no/such/place")),
        (DirectoryRole::Bin, here.to_owned()),
    ];
    VersionProbe {
        directories,
        recorded,
        deadline: Duration::from_secs(60),
        is_container: false,
    }
}

const ANSWER: &str = r#"echo '{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}'"#;

#[test]
fn program_is_found_run_and_classified_by_its_response() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    program(here, "good", ANSWER, 0o755);
    program(here, "mute", "exit 3", 0o755);
    program(here, "dead", "", 0o644);
    let look = |name: &str| probe(here, None).examine(name.into(), "1.0.0".into()).state;
    assert_eq!(
        look("good"),
        ProgramState::Supports(here.join("good"), vec!["0.4.0".into(), "1.0.0".into()])
    );
    assert_eq!(look("dead"), ProgramState::NotExecutable(here.join("dead")));
    assert_eq!(look("gone"), ProgramState::Missing);
    let ProgramState::Broken(_, reason) = look("mute") else {
        panic!()
    };
    assert_eq!(reason, "does not answer VERSION (exit status: 3)");
}

#[test]
fn program_with_a_separator_in_its_name_is_not_run() {
    let directory = tempfile::tempdir().unwrap();
    let bin = directory.path().join("bin");
    fs::create_dir(&bin).unwrap();
    program(directory.path(), "x", ANSWER, 0o755);
    for name in [
        "../x".to_owned(),
        directory.path().join("x").display().to_string(),
    ] {
        assert_eq!(
            probe(&bin, None).examine(name, "1.0.0".into()).state,
            ProgramState::InvalidName
        );
    }
}

#[test]
fn programs_that_a_plugin_calls_are_examined_after_the_plugins() {
    let flannel = r#"{"name":"n","plugins":[{"type":"flannel","delegate":{"type":"calico","ipam":
        {"type":"host-local"}}},{"type":"portmap"}]}"#;
    let content = content(read(&[("10-canal.conflist", flannel)]).selected);
    let root = tempfile::tempdir().unwrap();
    let programs = examine_programs(&[&content], None, &Layout::below(root.path()), None);
    let names: Vec<_> = programs
        .iter()
        .map(|program| program.name.as_str())
        .collect();
    assert_eq!(
        names,
        ["flannel", "portmap", "calico", "host-local", "loopback"]
    );
    assert!(
        programs
            .iter()
            .all(|program| program.state == ProgramState::Missing)
    );
}

/// A container may lack an interpreter that the node has.
#[test]
fn program_without_its_interpreter_is_broken_only_on_the_node() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("portmap");
    fs::write(&path, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    let look = |is_container: bool| {
        let probe = VersionProbe {
            is_container,
            ..probe(directory.path(), None)
        };
        probe.examine("portmap".into(), "1.0.0".into()).state
    };
    assert_eq!(look(true), ProgramState::OnlyOnNode(path.clone()));
    assert!(matches!(look(false), ProgramState::Broken(..)));
}

#[test]
fn hanging_program_is_reported_and_not_awaited() {
    let directory = tempfile::tempdir().unwrap();
    program(directory.path(), "portmap", "exec sleep 1000", 0o755);
    let probe = VersionProbe {
        deadline: Duration::from_millis(50),
        ..probe(directory.path(), None)
    };
    let ProgramState::Broken(_, reason) = probe.examine("portmap".into(), "1.0.0".into()).state
    else {
        panic!()
    };
    assert_eq!(reason, "does not answer within 50ms");
}

#[test]
fn program_origin_is_derived_from_the_install_record() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    program(here, "portmap", ANSWER, 0o755);
    let digest = digest::of_file(&here.join("portmap")).unwrap();
    let mut state = State::default();
    let origin = |state: &State| {
        probe(here, Some(state))
            .examine("portmap".into(), String::new())
            .origin
    };
    assert_eq!(origin(&state), ProgramOrigin::Unknown);
    state.record(DirectoryRole::Bin, "portmap", None, false);
    assert_eq!(origin(&state), ProgramOrigin::Unknown);
    state.record(DirectoryRole::Bin, "portmap", Some(digest.clone()), false);
    assert_eq!(origin(&state), ProgramOrigin::Installed);
    state.record_replacement(DirectoryRole::Bin, "portmap", "other".into(), Some(&digest));
    assert_eq!(origin(&state), ProgramOrigin::Former);
    state.record(DirectoryRole::Bin, "portmap", Some("other".into()), false);
    assert_eq!(origin(&state), ProgramOrigin::Other);
}

#[test]
fn only_calicos_programs_are_run_for_their_version() {
    let directory = tempfile::tempdir().unwrap();
    let version = format!("[ \"$1\" = -v ] && echo v1.2.3 && exit\n{ANSWER}");
    for name in ["calico", "portmap"] {
        program(directory.path(), name, &version, 0o755);
    }
    let version = |name: &str| {
        probe(directory.path(), None)
            .examine(name.into(), "1.0.0".into())
            .version
    };
    assert_eq!(
        (version("calico").as_deref(), version("portmap")),
        (Some("v1.2.3"), None)
    );
}
