//! Reads the relevant configurations, and examines the programs and TLS files that they name.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use netconf::NetConf;
use os::atomic_file::regular_file;
use os::child;
use serde_json::{Map, Value};

use crate::doctor::snapshot::{
    Content, Observed, ProgramOrigin, ProgramState, RequiredProgram, SelectedConfig, TlsFile, Unobserved,
};
use crate::layout::{CALICO, CALICO_IPAM, DirectoryRole, Layout};
use crate::state::State;
use crate::version_run::BUSY;
use crate::{conflist, digest, node_conf, supported_versions, template};

#[derive(Default)]
pub(super) struct Configurations {
    /// The first file that runtimes read; `None` if there is none.
    pub(super) selected: Option<SelectedConfig>,
    /// Calico's configuration, if the first file delegates to other networks.
    pub(super) delegate: Option<SelectedConfig>,
    /// The configuration of Calico's plugin in `delegate` if there is one, else in `selected`.
    pub(super) conf: Option<NetConf>,
}

/// A configuration file, and the configuration of Calico's plugin in it.
struct Read {
    selected: SelectedConfig,
    conf: Observed<NetConf>,
}

/// Reads the configurations. `names` are the files that a runtime reads, in its order.
pub(super) fn read(names: &Observed<Vec<String>>, layout: &Layout, net_dir: &str) -> Configurations {
    let mut files = names.iter().flatten().map(|name| read_one(name, layout, net_dir));
    let Some(first) = files.next() else { return Configurations::default() };
    let delegates = first.selected.content.as_ref().is_ok_and(Content::delegates);
    let behind = if delegates { delegate(files.collect()) } else { None };
    let (delegate, conf) = match behind {
        Some(Read { selected, conf }) => (Some(selected), conf),
        None => (None, first.conf),
    };
    Configurations { selected: Some(first.selected), delegate, conf: conf.ok() }
}

/// Returns the first file with Calico's plugin in it, or else the first unreadable one whose name contains "calico".
fn delegate(mut rest: Vec<Read>) -> Option<Read> {
    let is_calicos = |read: &Read| read.conf.is_ok() || read.selected.content.as_ref().is_ok_and(Content::is_calicos);
    let has_calico_name = |read: &Read| read.selected.content.is_err() && read.selected.name.contains("calico");
    let at = rest.iter().position(is_calicos).or_else(|| rest.iter().position(has_calico_name))?;
    Some(rest.swap_remove(at))
}

fn read_one(name: &str, layout: &Layout, net_dir: &str) -> Read {
    let text = regular_file::text(&layout.net_dir(net_dir).join(name)).map_err(Unobserved::new);
    let conf = text.clone().and_then(|text| node_conf::parse(&text, layout, net_dir).map_err(Unobserved::new));
    let content = text.and_then(|text| content(&text, conf.as_ref().err(), layout, net_dir));
    Read { selected: SelectedConfig { name: name.to_owned(), content }, conf }
}

fn content(text: &str, rejection: Option<&Unobserved>, layout: &Layout, net_dir: &str) -> Observed<Content> {
    let conf = conflist::parse(text).map_err(Unobserved::new)?;
    let directories: Vec<_> = layout.bin_paths().collect();
    let network = text_value(&conf, "name");
    let appends = !conf.get("loadOnlyInlinedPlugins").is_some_and(|only| only == true);
    let appended = conflist::candidates(&layout.net_dir(net_dir).join(&network)).unwrap_or_default();
    let appended = appended.into_iter().filter(|name| appends && !network.is_empty() && name.ends_with(".conf"));
    let mut content = Content {
        plugins: template::plugins(&conf).iter().map(|plugin| template::kind(plugin).to_owned()).collect(),
        programs: template::plugins(&conf).into_iter().flat_map(template::program_names).map(str::to_owned).collect(),
        cni_version: text_value(&conf, "cniVersion"),
        problems: template::find_problems(text, &conf, &directories),
        appended: appended.collect(),
        rejection: None,
        delegate_names: template::plugins(&conf).into_iter().flat_map(conflist::delegate_names).collect(),
        network,
    };
    content.rejection = rejection.filter(|_| content.is_calicos()).map(ToString::to_string);
    Ok(content)
}

fn text_value(conf: &Map<String, Value>, key: &str) -> String {
    conf.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}

pub(super) fn tls_files(conf: &NetConf) -> Vec<TlsFile> {
    let datastore = &conf.datastore;
    let named = [
        ("etcd_ca_cert_file", &datastore.etcd_ca_cert_file, "CERTIFICATE-----"),
        ("etcd_cert_file", &datastore.etcd_cert_file, "CERTIFICATE-----"),
        ("etcd_key_file", &datastore.etcd_key_file, "PRIVATE KEY-----"),
    ];
    let named = named.into_iter().filter(|(_, path, _)| !path.is_empty());
    named.map(|(setting, path, label)| TlsFile { setting, path: path.into(), mode: read_mode(path, label) }).collect()
}

fn read_mode(path: &str, label: &str) -> Observed<u32> {
    let read = fs::metadata(path).and_then(|found| Ok((found.permissions().mode() & 0o7777, fs::read(path)?)));
    let (mode, text) = read.map_err(Unobserved::new)?;
    let is_start = |line: &str| line.starts_with("-----BEGIN ") && line.ends_with(label);
    if String::from_utf8_lossy(&text).lines().any(is_start) {
        return Ok(mode);
    }
    Err(Unobserved::new(format!("the file contains no {}", label.trim_end_matches('-'))))
}

/// The plugin that containerd by default runs for each pod beside any configuration (INST-171).
const LOOPBACK: &str = "loopback";

/// Time limit for one run of a plugin with VERSION or `-v`, which query no server.
const DEADLINE: Duration = Duration::from_secs(5);

/// The directories to search for programs, and the installer's records.
struct VersionProbe<'a> {
    directories: Vec<(DirectoryRole, PathBuf)>,
    recorded: Option<&'a State>,
    deadline: Duration,
    /// True in a container, which may lack interpreters and libraries of the node.
    is_container: bool,
}

/// Examines each of these programs once: the plugins that the configurations name, the programs that they call, and
/// `loopback`. Returns an empty list if there is no readable configuration.
pub(super) fn examine_programs(
    contents: &[&Content],
    conf: Option<&NetConf>,
    layout: &Layout,
    recorded: Option<&State>,
) -> Vec<RequiredProgram> {
    let Some(last) = contents.last() else { return Vec::new() };
    let plugins = contents.iter().flat_map(|content| content.plugins.iter().map(move |name| (*content, name)));
    let programs = contents.iter().flat_map(|content| content.programs.iter().map(move |name| (*content, name)));
    let with_version = |(content, name): (&Content, &String)| (name.clone(), content.cni_version.clone());
    let mut wanted: Vec<(String, String)> = plugins.chain(programs).map(with_version).collect();
    let ipam = conf.map(|conf| conf.ipam.ipam_type.clone());
    wanted.extend(ipam.into_iter().chain([LOOPBACK.to_owned()]).map(|name| (name, last.cni_version.clone())));
    let (directories, is_container) = (layout.bin_dirs(), layout.is_container());
    let probe = VersionProbe { directories, recorded, deadline: DEADLINE, is_container };
    let mut programs: Vec<RequiredProgram> = Vec::new();
    for (name, cni_version) in wanted.into_iter().filter(|(name, _)| !name.is_empty()) {
        if !programs.iter().any(|known| known.name == name) {
            programs.push(probe.examine(name, cni_version));
        }
    }
    programs
}

impl VersionProbe<'_> {
    /// Examines the first regular file of this name, which runtimes choose whatever its mode (INST-165).
    fn examine(&self, name: String, cni_version: String) -> RequiredProgram {
        let is_valid = template::is_program_name(&name);
        let mut found = self.directories.iter().map(|(place, directory)| (*place, directory.join(&name)));
        let Some((place, path)) = found.find(|(_, path)| is_valid && path.is_file()) else {
            let state = if is_valid { ProgramState::Missing } else { ProgramState::InvalidName };
            return RequiredProgram { name, cni_version, state, origin: ProgramOrigin::Unknown, version: None };
        };
        let state = self.state(path.clone(), &cni_version);
        let is_calicos = matches!(name.as_str(), CALICO | CALICO_IPAM) && matches!(state, ProgramState::Supports(..));
        let version = is_calicos.then(|| self.version(&path)).flatten();
        RequiredProgram { origin: self.origin(place, &name, &path), name, cni_version, state, version }
    }

    fn state(&self, path: PathBuf, cni_version: &str) -> ProgramState {
        let is_executable = path.metadata().is_ok_and(|found| found.permissions().mode() & 0o111 != 0);
        if !is_executable {
            return ProgramState::NotExecutable(path);
        }
        match supported_versions::query(&path, cni_version, self.deadline) {
            Ok(versions) => ProgramState::Supports(path, versions),
            Err(error) if self.is_container && error.is_missing_interpreter() => ProgramState::OnlyOnNode(path),
            Err(error) => ProgramState::Broken(path, error.to_string()),
        }
    }

    /// Compares the digest of a file with the record.
    fn origin(&self, place: DirectoryRole, name: &str, path: &Path) -> ProgramOrigin {
        let recorded = self.recorded.and_then(|state| state.get(place, name)).filter(|known| known.digest.is_some());
        let Some((recorded, digest)) = recorded.zip(digest::of_file(path).ok()) else { return ProgramOrigin::Unknown };
        let is = |known: &Option<String>| known.as_ref() == Some(&digest);
        match (is(&recorded.digest), is(&recorded.former)) {
            (true, _) => ProgramOrigin::Installed,
            (false, true) => ProgramOrigin::Former,
            (false, false) => ProgramOrigin::Other,
        }
    }

    /// Returns the output of `-v` if the program succeeds and the output is a single word.
    fn version(&self, path: &Path) -> Option<String> {
        let mut command = Command::new(path);
        let ran = child::run_without_capabilities(command.arg("-v").stderr(Stdio::null()), b"", self.deadline, BUSY);
        let answer = ran.ok().flatten().filter(|answer| answer.status.success())?;
        let output = String::from_utf8(answer.stdout).ok()?;
        Some(output.trim().to_owned()).filter(|output| !output.is_empty() && !output.contains(char::is_whitespace))
    }
}

#[cfg(test)]
mod tests {
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
        assert!(rejection.contains("$.mtu") && rejection.contains("99999"), "{rejection}");
        let theirs = content(read(&[("05-other.conf", r#"{"name":"other","type":"ptp","mtu":99999}"#)]).selected);
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
            let found = read(&[("00-multus.conf", multus), others, ("10-calico.conflist", OURS)]);
            assert_eq!(found.conf.unwrap().node.nodename, "n1");
            assert_eq!(found.delegate.as_ref().unwrap().name, "10-calico.conflist");
            assert_eq!(content(found.delegate).network, "k8s-pod-network");
            assert_eq!(content(found.selected).delegate_names, [delegate_names]);
        }
        let damaged = read(&[("00-multus.conf", r#"{"name":"m","type":"multus"}"#), ("10-calico.conflist", "{")]);
        assert!(damaged.delegate.unwrap().content.is_err());
    }

    #[test]
    fn configuration_behind_a_plugin_other_than_multus_is_ignored() {
        let found = read(&[("05-other.conf", r#"{"name":"o","type":"ptp"}"#), ("10-calico.conflist", OURS)]);
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
        let key = file("key", "-----BEGIN EC PRIVATE KEY-----\nx\n-----END EC PRIVATE KEY-----\n", 0o600);
        let certificate = file("cert", "words\n-----BEGIN CERTIFICATE-----\nx\n", 0o644);
        let mut conf = NetConf::default();
        conf.datastore.etcd_ca_cert_file = directory.path().join("gone").display().to_string();
        conf.datastore.etcd_cert_file = key.clone();
        conf.datastore.etcd_key_file = key;
        let found = tls_files(&conf);
        assert!(found[0].mode.as_ref().unwrap_err().to_string().contains("No such file"), "{found:?}");
        assert_eq!(found[1].mode, Err("the file contains no CERTIFICATE".into()));
        assert_eq!(found[2].mode, Ok(0o600));
        conf.datastore.etcd_cert_file = certificate.clone();
        conf.datastore.etcd_key_file = certificate;
        let found = tls_files(&conf);
        assert_eq!(found[1].mode, Ok(0o644));
        assert_eq!(found[2].mode, Err("the file contains no PRIVATE KEY".into()));
        assert!(tls_files(&NetConf::default()).is_empty());
    }

    fn program(directory: &Path, name: &str, script: &str, mode: u32) {
        fs::write(directory.join(name), format!("#!/bin/sh\ncat >/dev/null\n{script}\n")).unwrap();
        fs::set_permissions(directory.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Returns a probe whose first directory does not exist.
    fn probe<'a>(here: &Path, recorded: Option<&'a State>) -> VersionProbe<'a> {
        let directories =
            vec![(DirectoryRole::SecondaryBin, PathBuf::from("/no/such/place")), (DirectoryRole::Bin, here.to_owned())];
        VersionProbe { directories, recorded, deadline: Duration::from_secs(60), is_container: false }
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
        assert_eq!(look("good"), ProgramState::Supports(here.join("good"), vec!["0.4.0".into(), "1.0.0".into()]));
        assert_eq!(look("dead"), ProgramState::NotExecutable(here.join("dead")));
        assert_eq!(look("gone"), ProgramState::Missing);
        let ProgramState::Broken(_, reason) = look("mute") else { panic!() };
        assert_eq!(reason, "does not answer VERSION (exit status: 3)");
    }

    #[test]
    fn program_with_a_separator_in_its_name_is_not_run() {
        let directory = tempfile::tempdir().unwrap();
        let bin = directory.path().join("bin");
        fs::create_dir(&bin).unwrap();
        program(directory.path(), "x", ANSWER, 0o755);
        for name in ["../x".to_owned(), directory.path().join("x").display().to_string()] {
            assert_eq!(probe(&bin, None).examine(name, "1.0.0".into()).state, ProgramState::InvalidName);
        }
    }

    #[test]
    fn programs_that_a_plugin_calls_are_examined_after_the_plugins() {
        let flannel = r#"{"name":"n","plugins":[{"type":"flannel","delegate":{"type":"calico","ipam":
            {"type":"host-local"}}},{"type":"portmap"}]}"#;
        let content = content(read(&[("10-canal.conflist", flannel)]).selected);
        let root = tempfile::tempdir().unwrap();
        let programs = examine_programs(&[&content], None, &Layout::below(root.path()), None);
        let names: Vec<_> = programs.iter().map(|program| program.name.as_str()).collect();
        assert_eq!(names, ["flannel", "portmap", "calico", "host-local", "loopback"]);
        assert!(programs.iter().all(|program| program.state == ProgramState::Missing));
    }

    /// A container may lack an interpreter that the node has.
    #[test]
    fn program_without_its_interpreter_is_broken_only_on_the_node() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("portmap");
        fs::write(&path, "#!/no/such/interpreter\n").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        let look = |is_container: bool| {
            let probe = VersionProbe { is_container, ..probe(directory.path(), None) };
            probe.examine("portmap".into(), "1.0.0".into()).state
        };
        assert_eq!(look(true), ProgramState::OnlyOnNode(path.clone()));
        assert!(matches!(look(false), ProgramState::Broken(..)));
    }

    #[test]
    fn hanging_program_is_reported_and_not_awaited() {
        let directory = tempfile::tempdir().unwrap();
        program(directory.path(), "portmap", "exec sleep 1000", 0o755);
        let probe = VersionProbe { deadline: Duration::from_millis(50), ..probe(directory.path(), None) };
        let ProgramState::Broken(_, reason) = probe.examine("portmap".into(), "1.0.0".into()).state else { panic!() };
        assert_eq!(reason, "does not answer within 50ms");
    }

    #[test]
    fn program_origin_is_derived_from_the_install_record() {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path();
        program(here, "portmap", ANSWER, 0o755);
        let digest = digest::of_file(&here.join("portmap")).unwrap();
        let mut state = State::default();
        let origin = |state: &State| probe(here, Some(state)).examine("portmap".into(), String::new()).origin;
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
        let version = |name: &str| probe(directory.path(), None).examine(name.into(), "1.0.0".into()).version;
        assert_eq!((version("calico").as_deref(), version("portmap")), (Some("v1.2.3"), None));
    }
}
