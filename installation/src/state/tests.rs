use super::*;
use crate::digest;
use crate::plugin_chain::read_chain;

#[test]
fn saved_install_record_is_loaded_unchanged() {
    let root = tempfile::tempdir().unwrap();
    let layout = Layout::below(root.path());
    assert_eq!(State::load(&layout).unwrap(), State::default());
    let mut state = State {
        version: "v1".into(),
        net_dir: "/etc/cni/net.d".into(),
        ..State::default()
    };
    state.record_replacement(
        DirectoryRole::Bin,
        "portmap",
        "aa".into(),
        Some("another's"),
    );
    state.record(DirectoryRole::Net, "calico-kubeconfig", None, false);
    state.save(&layout).unwrap();
    assert_eq!(State::load(&layout).unwrap(), state);

    state.record(DirectoryRole::Bin, "portmap", Some("bb".into()), false);
    assert!(
        state.is_ours(DirectoryRole::Bin, "portmap", "bb")
            && !state.is_ours(DirectoryRole::Bin, "portmap", "aa")
    );
    assert!(state.get(DirectoryRole::Bin, "portmap").unwrap().replaced);
    assert!(!state.is_ours(DirectoryRole::SecondaryBin, "portmap", "bb"));
    state.remove_record(DirectoryRole::Bin, "portmap");
    assert_eq!(state.files.len(), 1);
}

#[test]
fn former_file_is_recognized_until_the_new_file_is_recorded() {
    let is_ours = |state: &State, digest: &str| state.is_ours(DirectoryRole::State, "mtu", digest);
    let mut state = State::default();
    state.record(DirectoryRole::State, "mtu", Some("aa".into()), false);
    state.record_replacement(DirectoryRole::State, "mtu", "bb".into(), Some("aa"));
    assert!(
        !state.get(DirectoryRole::State, "mtu").unwrap().replaced,
        "it is ours"
    );
    let text = serde_json::to_string(&state).unwrap();
    let mut state: State = serde_json::from_str(&text).unwrap();
    assert!(is_ours(&state, "aa") && is_ours(&state, "bb") && !is_ours(&state, "cc"));
    state.record(DirectoryRole::State, "mtu", Some("bb".into()), false);
    assert!(is_ours(&state, "bb") && !is_ours(&state, "aa"));
}

#[test]
fn file_left_by_a_failed_run_is_recognized() {
    for left in ["aa", "bb"] {
        let mut state = State::default();
        state.record(DirectoryRole::Bin, "portmap", Some("aa".into()), false);
        state.record_replacement(DirectoryRole::Bin, "portmap", "bb".into(), Some("aa"));
        state.record_replacement(DirectoryRole::Bin, "portmap", "cc".into(), Some(left));
        let recorded = state.get(DirectoryRole::Bin, "portmap").unwrap();
        assert!(
            recorded.has_digest(left) && recorded.has_digest("cc") && !recorded.replaced,
            "{recorded:?}"
        );
    }
}

/// Older programs write records without renderings, and must be able to read records with them.
#[test]
fn records_with_and_without_renderings_are_compatible() {
    let mut state = State::default();
    let older = r#"{"files": {"net": {"10-calico.conflist": {"digest": "aa", "origin": "bb"}}}}"#;
    let older = serde_json::from_str::<State>(older).unwrap();
    let record = &older.files[&DirectoryRole::Net]["10-calico.conflist"];
    assert!(record.renderings.is_empty());
    state.record(
        DirectoryRole::Net,
        "10-calico.conflist",
        Some("aa".into()),
        false,
    );
    assert!(
        !serde_json::to_string(&state)
            .unwrap()
            .contains("renderings"),
        "as it was without"
    );
    let chain =
        r#"{"name": "n", "plugins": [{"type": "calico", "policy": {"k8s_auth_token": "SECRET"}}]}"#;
    let rendering = Rendering::new(&crate::plugin_chain::read_chain(chain.as_bytes()).unwrap());
    state
        .get_mut(DirectoryRole::Net, "10-calico.conflist")
        .unwrap()
        .renderings = vec![rendering];
    let text = serde_json::to_string(&state).unwrap();
    assert!(
        !text.contains("SECRET") && text.contains(r#""type":"calico""#),
        "{text}"
    );
    assert_eq!(serde_json::from_str::<State>(&text).unwrap(), state);
}

#[test]
fn changed_directory_moves_its_records_and_the_way_back_returns_them() {
    let mut state = State {
        net_dir: "/a".into(),
        ..State::default()
    };
    state.record(
        DirectoryRole::Net,
        "10-calico.conflist",
        Some("aa".into()),
        false,
    );
    state.record(DirectoryRole::Bin, "calico", Some("bb".into()), false);
    let before = state.clone();
    // An older version did not record the plugin directory.
    state.use_directory(DirectoryRole::Bin, "/bin");
    assert_eq!(
        (state.bin_dir.as_str(), &state.files),
        ("/bin", &before.files)
    );
    state.use_directory(DirectoryRole::Net, "/b");
    assert_eq!(state.get(DirectoryRole::Net, "10-calico.conflist"), None);
    assert_eq!(
        (state.former.len(), state.former[0].path.as_str()),
        (1, "/a")
    );
    assert_eq!(
        serde_json::from_str::<State>(&serde_json::to_string(&state).unwrap()).unwrap(),
        state
    );
    state.use_directory(DirectoryRole::Net, "/a");
    assert_eq!((&state.files, state.former.len()), (&before.files, 0));
}

#[test]
fn special_state_file_is_reported_and_not_awaited() {
    let root = tempfile::tempdir().unwrap();
    let layout = Layout::below(root.path());
    fs::create_dir_all(layout.state_dir()).unwrap();
    assert!(
        std::process::Command::new("mkfifo")
            .arg(path(&layout))
            .status()
            .unwrap()
            .success()
    );
    let error = State::load(&layout).unwrap_err().to_string();
    assert!(error.contains("no regular file"), "{error}");
}

#[test]
fn damaged_state_file_is_reported_with_its_name() {
    let root = tempfile::tempdir().unwrap();
    let layout = Layout::below(root.path());
    fs::create_dir_all(layout.state_dir()).unwrap();
    fs::write(path(&layout), "{").unwrap();
    let error = State::load(&layout).unwrap_err().to_string();
    assert!(
        error.contains("cni-install-state.json is damaged"),
        "{error}"
    );
}

#[test]
fn records_of_a_role_of_a_later_version_stay_in_the_file() {
    let root = tempfile::tempdir().unwrap();
    let layout = Layout::below(root.path());
    fs::create_dir_all(layout.state_dir()).unwrap();
    let text = r#"{
            "version": "v9", "netDir": "/etc/cni/net.d",
            "files": {"net": {"10-calico.conflist": {"digest": "aa"}}, "ebpf": {"tc.o": {"digest": "bb"}}},
            "former": [
                {"place": "bin", "path": "/old", "files": {"calico": {}}}, {"place": "ebpf", "path": "/e", "files": 7}
            ]
        }"#;
    fs::write(path(&layout), text).unwrap();
    let mut state = State::load(&layout).unwrap();
    assert!(state.is_ours(DirectoryRole::Net, "10-calico.conflist", "aa") && state.has_files());
    assert_eq!(
        (state.former.len(), state.later.roles()),
        (1, BTreeSet::from(["ebpf"]))
    );
    state.remove_record(DirectoryRole::Net, "10-calico.conflist");
    assert!(state.files.is_empty() && state.has_files());
    state.save(&layout).unwrap();
    let saved: Value = serde_json::from_slice(&fs::read(path(&layout)).unwrap()).unwrap();
    assert_eq!(
        saved["files"],
        serde_json::json!({"ebpf": {"tc.o": {"digest": "bb"}}})
    );
    assert_eq!(
        (
            &saved["former"][1]["path"],
            saved["former"].as_array().unwrap().len()
        ),
        (&"/e".into(), 2)
    );
    assert_eq!(State::load(&layout).unwrap(), state);
}

#[test]
fn unknown_state_keys_are_ignored() {
    let state: State = serde_json::from_str(r#"{"version": "v9", "later": 1}"#).unwrap();
    assert_eq!(state.version, "v9");
}

/// Returns the record of a file with this content.
fn installed(content: &str) -> InstalledFile {
    InstalledFile {
        digest: Some(digest::of_bytes(content.as_bytes())),
        ..InstalledFile::default()
    }
}

/// Returns the records in `tests/formats/0.1.0/install-state/full.json`, which have all fields.
fn stored_state() -> State {
    let chain = br#"{"cniVersion": "1.0.0", "name": "k8s-pod-network", "plugins": [
        {"type": "calico", "mtu": 1450, "ipam": {"type": "calico-ipam"}},
        {"type": "portmap", "snat": true, "capabilities": {"portMappings": true}}
    ]}"#;
    let foreign = br#"{"plugins": [{"type": "istio-cni", "log_level": "info"}]}"#;
    let foreign = Rendering::new(&read_chain(foreign).unwrap());
    let mut rendering = Rendering::new(&read_chain(chain).unwrap());
    rendering.foreign.insert(foreign.plugins[0].digest.clone());
    let calico = InstalledFile {
        former: installed("calico before").digest,
        ..installed("calico")
    };
    let portmap = InstalledFile {
        replaced: true,
        ..installed("portmap")
    };
    let conflist = InstalledFile {
        origin: installed("origin").digest,
        renderings: vec![rendering],
        ..installed("conflist")
    };
    let files = |files: &[(&str, InstalledFile)]| {
        let named = |(name, file): &(&str, InstalledFile)| (name.to_string(), file.clone());
        files.iter().map(named).collect::<BTreeMap<_, _>>()
    };
    State {
        version: "0.1.0".into(),
        net_dir: "/etc/cni/net.d".into(),
        bin_dir: "/opt/cni/bin".into(),
        files: BTreeMap::from([
            (
                DirectoryRole::Bin,
                files(&[("calico", calico), ("portmap", portmap)]),
            ),
            (
                DirectoryRole::SecondaryBin,
                files(&[("calico-ipam", installed("calico-ipam"))]),
            ),
            (
                DirectoryRole::Net,
                files(&[
                    ("10-calico.conflist", conflist),
                    ("calico-kubeconfig", InstalledFile::default()),
                ]),
            ),
            (DirectoryRole::State, files(&[("mtu", installed("mtu"))])),
        ]),
        former: vec![FormerDirectory {
            place: DirectoryRole::Net,
            path: "/etc/cni/old.d".into(),
            files: files(&[("10-calico.conflist", installed("old"))]),
        }],
        torn_down: ["10.244.0.5", "fd00:10:244::5"]
            .map(|ip| ip.parse().unwrap())
            .into(),
        later: LaterRecords::default(),
    }
}

#[test]
fn install_record_of_0_1_0_is_loaded_and_saved_unchanged() {
    let minimal = State {
        version: "0.1.0".into(),
        net_dir: "/etc/cni/net.d".into(),
        ..State::default()
    };
    for (stored, state) in [
        (
            include_str!("../../../tests/formats/0.1.0/install-state/full.json"),
            stored_state(),
        ),
        (
            include_str!("../../../tests/formats/0.1.0/install-state/minimal.json"),
            minimal,
        ),
    ] {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::below(root.path());
        fs::create_dir_all(layout.state_dir()).unwrap();
        fs::write(path(&layout), stored).unwrap();
        assert_eq!(State::load(&layout).unwrap(), state);
        fs::remove_file(path(&layout)).unwrap();
        state.save(&layout).unwrap();
        assert_eq!(fs::read_to_string(path(&layout)).unwrap(), stored);
    }
}
