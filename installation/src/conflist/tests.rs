use libcalico::variables::Variables;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::*;
use crate::digest;
use crate::layout::{DirectoryRole, Layout};
use crate::plugin_chain::{Chain, Rendering, read_chain};
use crate::settings::Settings;
use crate::state::State;
use crate::template::{self, kind, plugins};
use os::atomic_file::Change;

fn settings(variables: &[(&str, &str)]) -> Settings {
    let lookup = |name: &str| {
        variables
            .iter()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| (*value).to_owned())
    };
    Settings::from_environment(Variables::new(&lookup), "n").unwrap()
}

fn render(variables: &[(&str, &str)], root: &Path) -> Result<Conflist, Failure> {
    let settings = settings(variables);
    Conflist::render(&settings, &settings.values, &Layout::below(root))
}

fn target(directory: &Path, settings: &Settings, state: &State) -> Target {
    Target::new(directory, settings, state)
}

fn remove_former(directory: &Path, settings: &Settings, state: &mut State) {
    let target = target(directory, settings, state);
    let conflist = Conflist::render(
        settings,
        &settings.values,
        &Layout::below(Path::new(NOWHERE)),
    )
    .unwrap();
    let former = FormerConfig::find(&target, settings, state);
    conflist.write(&target, &former).unwrap();
    former
        .iter()
        .for_each(|former| conflist.remove_former(former, &target, state));
}

const NOWHERE: &str = "/no/such/root";

const CALICOS: &str = r#"{"name": "k8s-pod-network", "plugins": [{"type": "calico"}]}"#;
const STRANGE: &str = r#"{"name": "x", "plugins": [{"type": "cilium-cni"}]}"#;

#[test]
fn template_is_read_from_a_file_of_the_container() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("x")).unwrap();
    fs::write(dir.path().join("x/t"), CALICOS).unwrap();
    let rendered = render(&[("CNI_NETWORK_CONFIG_FILE", "/x/t")], dir.path()).unwrap();
    assert_eq!(
        (rendered.text.as_str(), rendered.network()),
        (CALICOS, "k8s-pod-network")
    );
    let missing = render(&[("CNI_NETWORK_CONFIG_FILE", "/t")], Path::new(NOWHERE))
        .err()
        .unwrap()
        .to_string();
    assert!(
        missing.starts_with("CNI_NETWORK_CONFIG_FILE: cannot read /no/such/root/t: "),
        "{missing}"
    );
    let wrong = render(&[("CNI_NETWORK_CONFIG", "[]")], Path::new(NOWHERE))
        .err()
        .unwrap()
        .to_string();
    assert!(wrong.contains("is not a JSON object"), "{wrong}");
}

/// The installer runs the programs, and libcni refuses such a name.
#[test]
fn programs_of_a_configuration_exclude_names_with_a_separator() {
    let settings = settings(&[(
        "CNI_NETWORK_CONFIG",
        r#"{"name": "n", "plugins": [{"type": "../x"}, {"type": "portmap"}]}"#,
    )]);
    let conflist = Conflist::render(
        &settings,
        &settings.values,
        &Layout::below(Path::new(NOWHERE)),
    )
    .unwrap();
    let target = target(Path::new(NOWHERE), &settings, &State::default());
    let programs = conflist.programs(&target, &[]);
    assert_eq!(
        programs,
        [ChainProgram {
            name: "portmap".into(),
            is_ours: true
        }]
    );
}

#[test]
fn rendered_configuration_that_the_plugin_rejects_is_not_written() {
    let mtu = render(&[("CNI_MTU", "99999")], Path::new(NOWHERE))
        .err()
        .unwrap()
        .to_string();
    assert!(
        mtu.starts_with("10-calico.conflist is not written")
            && mtu.contains("$.mtu: found the number"),
        "{mtu}"
    );
    let mtu = render(&[("CNI_MTU", "1450m")], Path::new(NOWHERE))
        .err()
        .unwrap()
        .to_string();
    assert!(
        mtu.contains("not valid JSON") && mtu.contains("; CNI_MTU must be a number"),
        "{mtu}"
    );
    let secret =
        r#"{"type": "calico", "policy": {"k8s_auth_token": ["__SERVICEACCOUNT_TOKEN__"]}}"#;
    let settings = settings(&[("CNI_NETWORK_CONFIG", secret)]);
    let values = settings.values.clone().with_token("SECRET".into());
    let error = Conflist::render(&settings, &values, &Layout::below(Path::new(NOWHERE)))
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("$.policy.k8s_auth_token") && !error.contains("SECRET"),
        "{error}"
    );
    // Invalid values in the entries of other plugins are accepted: these plugins reject them.
    let others = r#"{"plugins": [{"type": "bridge", "mtu": 99999}, {"type": "flannel", "delegate": {"mtu": "x"}}]}"#;
    assert!(
        render(&[("CNI_NETWORK_CONFIG", others)], Path::new(NOWHERE))
            .unwrap()
            .plugin_conf
            .is_none()
    );
    let by_ipam = r#"{"type": "bridge", "ipam": {"type": "calico-ipam"}}"#;
    assert!(
        render(&[("CNI_NETWORK_CONFIG", by_ipam)], Path::new(NOWHERE))
            .unwrap()
            .plugin_conf
            .is_some()
    );
}

#[test]
fn new_token_does_not_count_as_a_new_template() {
    let of = |template: &str, token: &str| {
        let settings = settings(&[("CNI_NETWORK_CONFIG", template)]);
        let values = settings.values.clone().with_token(token.into());
        Conflist::render(&settings, &values, &Layout::below(Path::new(NOWHERE))).unwrap()
    };
    let target = target(Path::new(NOWHERE), &settings(&[]), &State::default());
    let (with, without) = (
        r#"{"type": "flannel", "token": "__SERVICEACCOUNT_TOKEN__"}"#,
        r#"{"type": "flannel"}"#,
    );
    let mut state = State::default();
    let written = Written {
        change: Change::Written,
        rendering: Rendering::default(),
    };
    of(with, "first").record_written(&target, &written, &mut state);
    let recorded = |state: &State| {
        state
            .get(DirectoryRole::Net, &target.name)
            .cloned()
            .unwrap()
    };
    let first = recorded(&state);
    assert!(of(with, "second").is_recorded(&first) && !of(without, "first").is_recorded(&first));
    of(without, "first").record_written(&target, &written, &mut state);
    let second = recorded(&state);
    assert!(of(without, "second").is_recorded(&second) && !of(with, "first").is_recorded(&second));
}

#[test]
fn only_configurations_that_run_calico_are_removable() {
    for ours in [
        CALICOS,
        r#"{"type": "calico"}"#,
        r#"{"type": "flannel", "delegate": {"type": "calico"}}"#,
    ] {
        assert!(has_calico(ours), "{ours}");
    }
    for foreign in [
        STRANGE,
        "{}",
        "not JSON",
        r#"{"type": "multus", "note": "calico"}"#,
    ] {
        assert!(!has_calico(foreign), "{foreign}");
    }
}

#[test]
fn only_a_former_configuration_that_runs_calico_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let old = dir.path().join("10-calico.conflist");
    let canal = settings(&[("CNI_CONF_NAME", "10-canal.conflist")]);
    for (text, stays) in [(STRANGE, true), (CALICOS, false)] {
        fs::write(&old, text).unwrap();
        remove_former(dir.path(), &canal, &mut State::default());
        assert_eq!(old.exists(), stays, "{text}");
    }
    fs::write(&old, CALICOS).unwrap();
    for variables in [
        &[][..],
        &[
            ("CNI_CONF_NAME", "10-canal.conflist"),
            ("CNI_OLD_CONF_NAME", ""),
        ],
    ] {
        remove_former(dir.path(), &settings(variables), &mut State::default());
        assert!(old.exists(), "{variables:?}");
    }
}

#[test]
fn former_configuration_under_another_name_is_removed_unless_modified() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, changed) = ("20-calico.conflist", "30-calico.conflist");
    let mut state = State::default();
    for name in [ours, changed, "40-gone.conflist"] {
        state.record(
            DirectoryRole::Net,
            name,
            Some(digest::of_bytes(STRANGE.as_bytes())),
            false,
        );
    }
    state.record(DirectoryRole::Net, "calico-kubeconfig", None, false);
    fs::write(dir.path().join(ours), STRANGE).unwrap();
    fs::write(dir.path().join(changed), CALICOS).unwrap();
    fs::write(dir.path().join("calico-kubeconfig"), "").unwrap();
    remove_former(dir.path(), &settings(&[]), &mut state);
    let left = |name: &str| dir.path().join(name).exists();
    assert_eq!(
        (left(ours), left(changed), left("calico-kubeconfig")),
        (false, true, true)
    );
    let recorded: Vec<_> = state.files[&DirectoryRole::Net]
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(recorded, [changed, "calico-kubeconfig"]);
}

#[test]
fn existing_configuration_of_the_same_name_is_recorded_as_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(&[]);
    let conflist = render(&[], Path::new(NOWHERE)).unwrap();
    let mut state = State::default();
    let mut write = || {
        let target = target(dir.path(), &settings, &state);
        conflist.record(&target, &mut state);
        let change = conflist.write(&target, &[]).unwrap().change;
        (
            change,
            state
                .get(DirectoryRole::Net, "10-calico.conflist")
                .unwrap()
                .replaced,
        )
    };
    assert_eq!(write(), (Change::Written, false));
    assert_eq!(write(), (Change::Unchanged, false));
    fs::write(dir.path().join("10-calico.conflist"), CALICOS).unwrap();
    assert_eq!(write(), (Change::Written, true));
}

/// A run may fail after it recorded the configuration and before it wrote it.
#[test]
fn configuration_left_by_a_failed_run_is_recognized() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(&[]);
    let mut state = State::default();
    let first = render(&[], Path::new(NOWHERE)).unwrap();
    let target = target(dir.path(), &settings, &state);
    first.record(&target, &mut state);
    let written = first.write(&target, &[]).unwrap();
    first.record_written(&target, &written, &mut state);
    render(&[("CNI_MTU", "1400")], Path::new(NOWHERE))
        .unwrap()
        .record(&target, &mut state);
    let recorded = state.get(DirectoryRole::Net, "10-calico.conflist").unwrap();
    assert!(
        recorded.has_digest(&digest::of_bytes(first.text.as_bytes())) && !recorded.replaced,
        "{recorded:?}"
    );
}

fn extended(text: &str) -> String {
    let mut conf: Value = serde_json::from_str(text).unwrap();
    conf["plugins"]
        .as_array_mut()
        .unwrap()
        .push(serde_json::json!({ "type": "mesh" }));
    conf.to_string()
}

fn kinds(file: &Path) -> Vec<String> {
    let conf = template::parse(&fs::read_to_string(file).unwrap()).unwrap();
    plugins(&conf)
        .into_iter()
        .map(|plugin| kind(plugin).to_owned())
        .collect()
}

#[test]
fn own_configuration_with_a_foreign_entry_is_not_recorded_as_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let (settings, file) = (settings(&[]), dir.path().join("10-calico.conflist"));
    let mut state = State::default();
    for (variables, text) in [
        (&[][..], None),
        (&[("CNI_MTU", "1400")][..], None),
        (&[("CNI_MTU", "1300")][..], Some(CALICOS)),
    ] {
        let conflist = render(variables, Path::new(NOWHERE)).unwrap();
        let target = target(dir.path(), &settings, &state);
        conflist.record(&target, &mut state);
        assert_eq!(
            state
                .get(DirectoryRole::Net, "10-calico.conflist")
                .unwrap()
                .replaced,
            text.is_some()
        );
        let written = conflist.write(&target, &[]).unwrap();
        conflist.record_written(&target, &written, &mut state);
        let recorded = state.get(DirectoryRole::Net, "10-calico.conflist").unwrap();
        fs::write(&file, extended(&fs::read_to_string(&file).unwrap())).unwrap();
        assert!(is_installed_in(&fs::read(&file).unwrap(), recorded));
        if variables.len() == 1 && text.is_none() {
            fs::write(&file, CALICOS).unwrap();
        }
    }
}

/// A run may end between its record and its write, or between its write and the next record.
#[test]
fn killed_run_loses_neither_own_nor_foreign_plugin_entries() {
    let tuning =
        r#"{"name": "n", "plugins": [{"type": "calico"}, {"type": "tuning", "sysctl": {}}]}"#;
    let plain =
        r#"{"name": "n", "plugins": [{"type": "calico", "mtu": 1400}, {"type": "portmap"}]}"#;
    for is_written in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("10-calico.conflist");
        let mut state = State::default();
        let mut run = |template: &str, writes: bool, is_complete: bool| {
            let settings = settings(&[("CNI_NETWORK_CONFIG", template)]);
            let conflist = Conflist::render(
                &settings,
                &settings.values,
                &Layout::below(Path::new(NOWHERE)),
            )
            .unwrap();
            let target = target(dir.path(), &settings, &state);
            conflist.record(&target, &mut state);
            let written = writes.then(|| conflist.write(&target, &[]).unwrap());
            if let Some(written) = written.filter(|_| is_complete) {
                conflist.record_written(&target, &written, &mut state);
            }
        };
        run(tuning, true, true);
        let foreign = r#"{"name": "n", "plugins": [{"type": "calico"}, {"type": "tuning", "sysctl": {}}, {"type": "tuning"}, {"type": "mesh"}]}"#;
        fs::write(&file, foreign).unwrap();
        run(plain, is_written, false);
        run(CALICOS, true, true);
        assert_eq!(kinds(&file), ["calico", "tuning", "mesh"], "{is_written}");
    }
}

/// Another program adds an entry between the write of the new configuration and the removal of the
/// former one.
#[test]
fn entry_added_to_the_former_configuration_during_removal_is_moved() {
    let dir = tempfile::tempdir().unwrap();
    let mut state = State::default();
    let (old, new) = (
        settings(&[]),
        settings(&[("CNI_CONF_NAME", "20-calico.conflist")]),
    );
    let conflist = render(&[], Path::new(NOWHERE)).unwrap();
    let before = target(dir.path(), &old, &state);
    let written = conflist.write(&before, &[]).unwrap();
    conflist.record_written(&before, &written, &mut state);
    let after = target(dir.path(), &new, &state);
    let former = FormerConfig::find(&after, &new, &mut state);
    let written = conflist.write(&after, &former).unwrap();
    conflist.record_written(&after, &written, &mut state);
    let after = target(dir.path(), &new, &state);
    fs::write(
        before.path(),
        extended(&fs::read_to_string(before.path()).unwrap()),
    )
    .unwrap();
    former
        .iter()
        .for_each(|former| conflist.remove_former(former, &after, &mut state));
    assert_eq!(kinds(&after.path()), ["calico", "portmap", "mesh"]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

mod neighbours;

#[test]
fn active_configuration_is_the_first_by_byte_order() {
    let directory = tempfile::tempdir().unwrap();
    for name in [
        "10-calico.conflist",
        "calico-kubeconfig",
        "05-cilium.conflist",
        "Z.conf",
        ".hidden.json",
        "x.tmp",
        "conf",
    ] {
        fs::write(directory.path().join(name), "").unwrap();
    }
    fs::create_dir(directory.path().join("00-directory.conf")).unwrap();
    let expected = [
        ".hidden.json",
        "05-cilium.conflist",
        "10-calico.conflist",
        "Z.conf",
    ];
    assert_eq!(candidates(directory.path()).unwrap(), expected);
    assert!(candidates(&directory.path().join("missing")).is_err());
}
