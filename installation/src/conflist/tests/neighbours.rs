//! Tests of foreign entries across several runs, with the records that each run leaves.

use super::*;

const FILE: &str = "10-calico.conflist";

struct Node {
    directory: tempfile::TempDir,
    state: State,
}

impl Node {
    fn new() -> Node {
        Node {
            directory: tempfile::tempdir().unwrap(),
            state: State::default(),
        }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join(FILE)
    }

    fn text(&self) -> String {
        fs::read_to_string(self.path()).unwrap()
    }

    fn install(&mut self, template: &str) {
        let settings = settings(&[("CNI_NETWORK_CONFIG", template)]);
        let conflist = Conflist::render(
            &settings,
            &settings.values,
            &Layout::below(Path::new(NOWHERE)),
        )
        .unwrap();
        let target = target(self.directory.path(), &settings, &self.state);
        conflist.record(&target, &mut self.state);
        let written = conflist.write(&target, &[]).unwrap();
        conflist.record_written(&target, &written, &mut self.state);
    }

    /// Starts a run that is killed after it recorded the configuration.
    fn record(&mut self, template: &str) {
        let settings = settings(&[("CNI_NETWORK_CONFIG", template)]);
        let conflist = Conflist::render(
            &settings,
            &settings.values,
            &Layout::below(Path::new(NOWHERE)),
        )
        .unwrap();
        let target = target(self.directory.path(), &settings, &self.state);
        conflist.record(&target, &mut self.state);
    }

    fn write(&self, text: impl AsRef<[u8]>) {
        fs::write(self.path(), text).unwrap();
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.directory.path()).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

fn with_tuning() -> String {
    CALICOS.replace("]}", r#", {"type": "tuning", "sysctl": {}}]}"#)
}

#[test]
fn foreign_entry_equal_to_a_template_entry_stays_foreign() {
    let mut node = Node::new();
    node.install(CALICOS);
    node.write(with_tuning());
    for template in [CALICOS, &with_tuning(), CALICOS] {
        node.install(template);
        assert_eq!(kinds(&node.path()), ["calico", "tuning"], "{template}");
        let recorded = node.state.get(DirectoryRole::Net, FILE).unwrap();
        assert_eq!(
            foreign_entries(node.text().as_bytes(), recorded).len(),
            1,
            "{template}"
        );
    }
}

#[test]
fn killed_run_leaves_a_foreign_entry_foreign() {
    let mut node = Node::new();
    node.install(CALICOS);
    node.write(with_tuning());
    node.record(&with_tuning());
    node.install(CALICOS);
    assert_eq!(kinds(&node.path()), ["calico", "tuning"]);
}

#[test]
fn install_over_a_file_that_cannot_be_backed_up_fails_without_changes() {
    let mut node = Node::new();
    node.install(CALICOS);
    let ends = ["", ".2", ".3", ".4", ".5", ".6", ".7", ".8", ".9"];
    let copies = ends.map(|end| {
        node.directory
            .path()
            .join(format!("{FILE}.unreadable{end}"))
    });
    copies.iter().for_each(|copy| fs::create_dir(copy).unwrap());
    node.write("{");
    let settings = settings(&[("CNI_NETWORK_CONFIG", CALICOS)]);
    let target = target(node.directory.path(), &settings, &node.state);
    let conflist = Conflist::render(
        &settings,
        &settings.values,
        &Layout::below(Path::new(NOWHERE)),
    )
    .unwrap();
    let error = conflist.write(&target, &[]).unwrap_err().to_string();
    assert!(error.contains(&format!("{FILE}.unreadable.9: ")), "{error}");
    assert_eq!(node.text(), "{");
}

#[test]
fn foreign_entries_are_preserved_byte_for_byte() {
    let deep = format!(
        r#"{{"type": "mesh", "deep": {}{}}}"#,
        "[".repeat(300),
        "]".repeat(300)
    );
    for entry in [
        r#"{"type": "mesh", "n": 123456789012345678901234567890, "m": 18446744073709551616}"#,
        r#"{"type": "mesh", "n": 1e400, "m": 0.10000000000000000001}"#,
        r#"{"type": "mesh",   "b": 1, "a": "\u0041"}"#,
        &deep,
    ] {
        let mut node = Node::new();
        node.install(CALICOS);
        node.write(CALICOS.replace("]}", &format!(r#", {entry}], "limit": 1e400}}"#)));
        node.install(&CALICOS.replace("}]", r#", "mtu": 1400}]"#));
        assert_eq!(kinds_of(&node), ["calico", "mesh"], "{entry}");
        assert!(
            node.text().contains(entry) && node.text().contains("1e400"),
            "{}",
            node.text()
        );
        assert_eq!(node.names(), [FILE]);
    }
}

fn kinds_of(node: &Node) -> Vec<String> {
    let chain = read_chain(&fs::read(node.path()).unwrap()).unwrap();
    chain
        .foreign(&Chain::default(), &[])
        .iter()
        .map(crate::plugin_chain::kind)
        .fold(vec!["calico".to_owned()], |mut kinds, kind| {
            kinds.push(kind.to_owned());
            kinds
        })
}

#[test]
fn invalid_unicode_in_foreign_entries_is_replaced_as_go_does() {
    for (value, read) in [
        (&br#""\ud800""#[..], r#""\ufffd""#),
        (
            br#""\uD83D\uDE00 \\ud800 \udc00""#,
            r#""\uD83D\uDE00 \\ud800 \ufffd""#,
        ),
        (b"\"\xff\"", "\"\u{fffd}\""),
    ] {
        let mut node = Node::new();
        node.install(CALICOS);
        let (before, after) = CALICOS.split_at(CALICOS.len() - 2);
        node.write(
            [
                before.as_bytes(),
                br#", {"type": "mesh", "s": "#,
                value,
                b"}",
                after.as_bytes(),
            ]
            .concat(),
        );
        node.install(&CALICOS.replace("}]", r#", "mtu": 1400}]"#));
        assert!(
            node.text()
                .contains(&format!(r#"{{"type": "mesh", "s": {read}}}"#)),
            "{}",
            node.text()
        );
    }
}

#[test]
fn unreadable_configuration_is_backed_up_under_an_inactive_name() {
    let mut node = Node::new();
    let copies = [
        "10-calico.conflist.unreadable",
        "10-calico.conflist.unreadable.2",
    ];
    for (text, expected) in [
        ("{\"plugins\": [", 1),
        ("{\"plugins\": [", 1),
        ("[]", 2),
        (" \n", 2),
    ] {
        node.write(text);
        node.install(CALICOS);
        assert_eq!(node.text(), CALICOS);
        assert_eq!(node.names()[1..], copies[..expected], "{text}");
    }
    assert!(!copies.into_iter().any(crate::conflist::is_read_by_runtimes));
    let copy = |name| fs::read_to_string(node.directory.path().join(name)).unwrap();
    assert_eq!(copies.map(copy), ["{\"plugins\": [", "[]"]);
}

#[test]
fn equal_configuration_is_not_rewritten() {
    let mut node = Node::new();
    // A comparison of the plugins would call this text different from itself, as an element of the
    // list is no plugin.
    let odd = CALICOS.replace("}]", "}, null]");
    let (settings, conflist) = (
        settings(&[("CNI_NETWORK_CONFIG", &odd)]),
        |settings: &Settings| {
            Conflist::render(
                settings,
                &settings.values,
                &Layout::below(Path::new(NOWHERE)),
            )
            .unwrap()
        },
    );
    node.install(&odd);
    for state in [State::default(), node.state.clone()] {
        let target = target(node.directory.path(), &settings, &state);
        assert!(conflist(&settings).is_written(&target));
        assert_eq!(
            conflist(&settings).write(&target, &[]).unwrap().change,
            Change::Unchanged
        );
    }
    assert_eq!(node.text(), odd);
}

#[test]
fn former_configuration_under_an_inactive_name_is_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let bak = "05-calico.conflist.cilium_bak";
    fs::write(dir.path().join(bak), CALICOS).unwrap();
    remove_former(
        dir.path(),
        &settings(&[("CNI_OLD_CONF_NAME", bak)]),
        &mut State::default(),
    );
    assert!(dir.path().join(bak).exists());
}

/// Cilium with `cni.exclusive` renames each new file at once. So a renamed file with the right
/// content is left under its new name.
#[test]
fn file_that_cilium_renamed_is_written_once_for_each_change() {
    let alone = r#"{"name": "cilium", "plugins": [{"type": "cilium-cni"}]}"#;
    let chained =
        r#"{"name": "k8s-pod-network", "plugins": [{"type": "calico"}, {"type": "cilium-cni"}]}"#;
    for (ciliums, is_displaced) in [(alone, true), (chained, false)] {
        let mut node = Node::new();
        let (renamed, ciliums_file) = (
            format!("{FILE}.cilium_bak"),
            node.directory.path().join("05-cilium.conflist"),
        );
        let rename =
            |node: &Node| fs::rename(node.path(), node.directory.path().join(&renamed)).unwrap();
        let selection = |node: &Node| {
            let target = target(
                node.directory.path(),
                &settings(&[("CNI_NETWORK_CONFIG", CALICOS)]),
                &node.state,
            );
            Selection::find(&target, "/etc/cni/net.d", "k8s-pod-network")
        };
        fs::write(&ciliums_file, ciliums).unwrap();
        node.install(CALICOS);
        assert_eq!(
            selection(&node).is_calico(),
            Some(!is_displaced),
            "our file is in place"
        );
        rename(&node);
        node.install(CALICOS);
        assert_eq!(
            node.names(),
            ["05-cilium.conflist", &renamed],
            "nothing was written"
        );
        let reason = selection(&node).problem().cloned();
        assert_eq!(
            reason.is_some_and(|reason| reason.contains("cni.chainingMode")),
            is_displaced
        );
        node.install(&with_tuning());
        assert_eq!(node.text(), with_tuning());
        rename(&node);
        node.install(&with_tuning());
        assert_eq!(
            node.names(),
            ["05-cilium.conflist", &renamed],
            "nothing was written"
        );

        fs::remove_file(&ciliums_file).unwrap();
        assert_eq!(selection(&node), Selection::Unknown);
        node.install(&with_tuning());
        assert_eq!(node.text(), with_tuning(), "without Cilium's configuration");
    }
}

/// Without a record, for example if the state is unreadable, the list may be another program's.
#[test]
fn list_is_written_beside_the_named_conf_file_only_with_a_record() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(&[("CNI_CONF_NAME", "10-calico.conf")]);
    let name = |state: &State| target(dir.path(), &settings, state).name;
    fs::write(dir.path().join(FILE), with_tuning()).unwrap();
    assert_eq!(name(&State::default()), FILE);
    fs::write(
        dir.path().join("10-calico.conf"),
        r#"{"name": "n", "type": "calico"}"#,
    )
    .unwrap();
    assert_eq!(name(&State::default()), "10-calico.conf");
    let mut state = State::default();
    state.record(DirectoryRole::Net, FILE, Some("aa".into()), false);
    assert_eq!(name(&state), FILE);
}

#[test]
fn special_files_are_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(&[
        ("CNI_OLD_CONF_NAME", "05-old.conflist"),
        ("CNI_CONF_NAME", "10-calico.conf"),
    ]);
    let mut state = State::default();
    state.record(
        DirectoryRole::Net,
        "20-noted.conflist",
        Some("aa".into()),
        false,
    );
    for name in [
        "05-old.conflist",
        "20-noted.conflist",
        "10-calico.conflist",
        "10-calico.conf",
    ] {
        nix::unistd::mkfifo(&dir.path().join(name), nix::sys::stat::Mode::S_IRUSR).unwrap();
    }
    let target = target(dir.path(), &settings, &state);
    assert_eq!(target.name, "10-calico.conf");
    assert!(FormerConfig::find(&target, &settings, &mut state).is_empty());
    let conflist = render(&[], Path::new(NOWHERE)).unwrap();
    conflist.record(&target, &mut state);
    assert!(!conflist.is_written(&target));
    let error = conflist.write(&target, &[]).unwrap_err().to_string();
    assert!(
        error.contains("10-calico.conf: it is no regular file"),
        "{error}"
    );
}
