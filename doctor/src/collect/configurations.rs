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

use crate::snapshot::{
    Content, Observed, ProgramOrigin, ProgramState, RequiredProgram, SelectedConfig, TlsFile,
    Unobserved,
};
use installation::layout::{CALICO, CALICO_IPAM, DirectoryRole, Layout};
use installation::state::State;
use installation::version_run::BUSY;
use installation::{conflist, digest, node_conf, supported_versions, template};

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
pub(super) fn read(
    names: &Observed<Vec<String>>,
    layout: &Layout,
    net_dir: &str,
) -> Configurations {
    let mut files = names
        .iter()
        .flatten()
        .map(|name| read_one(name, layout, net_dir));
    let Some(first) = files.next() else {
        return Configurations::default();
    };
    let delegates = first
        .selected
        .content
        .as_ref()
        .is_ok_and(Content::delegates);
    let behind = if delegates {
        delegate(files.collect())
    } else {
        None
    };
    let (delegate, conf) = match behind {
        Some(Read { selected, conf }) => (Some(selected), conf),
        None => (None, first.conf),
    };
    Configurations {
        selected: Some(first.selected),
        delegate,
        conf: conf.ok(),
    }
}

/// Returns the first file with Calico's plugin in it, or else the first unreadable one whose name
/// contains "calico".
fn delegate(mut rest: Vec<Read>) -> Option<Read> {
    let is_calicos = |read: &Read| {
        read.conf.is_ok()
            || read
                .selected
                .content
                .as_ref()
                .is_ok_and(Content::is_calicos)
    };
    let has_calico_name =
        |read: &Read| read.selected.content.is_err() && read.selected.name.contains("calico");
    let at = rest
        .iter()
        .position(is_calicos)
        .or_else(|| rest.iter().position(has_calico_name))?;
    Some(rest.swap_remove(at))
}

fn read_one(name: &str, layout: &Layout, net_dir: &str) -> Read {
    let text = regular_file::text(&layout.net_dir(net_dir).join(name)).map_err(Unobserved::new);
    let conf = text
        .clone()
        .and_then(|text| node_conf::parse(&text, layout, net_dir).map_err(Unobserved::new));
    let content = text.and_then(|text| content(&text, conf.as_ref().err(), layout, net_dir));
    Read {
        selected: SelectedConfig {
            name: name.to_owned(),
            content,
        },
        conf,
    }
}

fn content(
    text: &str,
    rejection: Option<&Unobserved>,
    layout: &Layout,
    net_dir: &str,
) -> Observed<Content> {
    let conf = conflist::parse(text).map_err(Unobserved::new)?;
    let directories: Vec<_> = layout.bin_paths().collect();
    let network = text_value(&conf, "name");
    let appends = !conf
        .get("loadOnlyInlinedPlugins")
        .is_some_and(|only| only == true);
    let appended =
        conflist::candidates(&layout.net_dir(net_dir).join(&network)).unwrap_or_default();
    let appended = appended
        .into_iter()
        .filter(|name| appends && !network.is_empty() && name.ends_with(".conf"));
    let mut content = Content {
        plugins: template::plugins(&conf)
            .iter()
            .map(|plugin| template::kind(plugin).to_owned())
            .collect(),
        programs: template::plugins(&conf)
            .into_iter()
            .flat_map(template::program_names)
            .map(str::to_owned)
            .collect(),
        cni_version: text_value(&conf, "cniVersion"),
        problems: template::find_problems(text, &conf, &directories),
        appended: appended.collect(),
        rejection: None,
        delegate_names: template::plugins(&conf)
            .into_iter()
            .flat_map(conflist::delegate_names)
            .collect(),
        network,
    };
    content.rejection = rejection
        .filter(|_| content.is_calicos())
        .map(ToString::to_string);
    Ok(content)
}

fn text_value(conf: &Map<String, Value>, key: &str) -> String {
    conf.get(key)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

pub(super) fn tls_files(conf: &NetConf) -> Vec<TlsFile> {
    let datastore = &conf.datastore;
    let named = [
        (
            "etcd_ca_cert_file",
            &datastore.etcd_ca_cert_file,
            "CERTIFICATE-----",
        ),
        (
            "etcd_cert_file",
            &datastore.etcd_cert_file,
            "CERTIFICATE-----",
        ),
        (
            "etcd_key_file",
            &datastore.etcd_key_file,
            "PRIVATE KEY-----",
        ),
    ];
    let named = named.into_iter().filter(|(_, path, _)| !path.is_empty());
    named
        .map(|(setting, path, label)| TlsFile {
            setting,
            path: path.into(),
            mode: read_mode(path, label),
        })
        .collect()
}

fn read_mode(path: &str, label: &str) -> Observed<u32> {
    let read = fs::metadata(path).and_then(|found| {
        Ok((
            found.permissions().mode() & 0o7777,
            regular_file::contents(Path::new(path))?,
        ))
    });
    let (mode, text) = read.map_err(Unobserved::new)?;
    let is_start = |line: &str| line.starts_with("-----BEGIN ") && line.ends_with(label);
    if String::from_utf8_lossy(&text).lines().any(is_start) {
        return Ok(mode);
    }
    Err(Unobserved::new(format!(
        "the file contains no {}",
        label.trim_end_matches('-')
    )))
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

/// Examines each of these programs once: the plugins that the configurations name, the programs
/// that they call, and `loopback`. Returns an empty list if there is no readable configuration.
pub(super) fn examine_programs(
    contents: &[&Content],
    conf: Option<&NetConf>,
    layout: &Layout,
    recorded: Option<&State>,
) -> Vec<RequiredProgram> {
    let Some(last) = contents.last() else {
        return Vec::new();
    };
    let plugins = contents
        .iter()
        .flat_map(|content| content.plugins.iter().map(move |name| (*content, name)));
    let programs = contents
        .iter()
        .flat_map(|content| content.programs.iter().map(move |name| (*content, name)));
    let with_version =
        |(content, name): (&Content, &String)| (name.clone(), content.cni_version.clone());
    let mut wanted: Vec<(String, String)> = plugins.chain(programs).map(with_version).collect();
    let ipam = conf.map(|conf| conf.ipam.ipam_type.clone());
    wanted.extend(
        ipam.into_iter()
            .chain([LOOPBACK.to_owned()])
            .map(|name| (name, last.cni_version.clone())),
    );
    let (directories, is_container) = (layout.bin_dirs(), layout.is_container());
    let probe = VersionProbe {
        directories,
        recorded,
        deadline: DEADLINE,
        is_container,
    };
    let mut programs: Vec<RequiredProgram> = Vec::new();
    for (name, cni_version) in wanted.into_iter().filter(|(name, _)| !name.is_empty()) {
        if !programs.iter().any(|known| known.name == name) {
            programs.push(probe.examine(name, cni_version));
        }
    }
    programs
}

impl VersionProbe<'_> {
    /// Examines the first regular file of this name, which runtimes choose whatever its mode
    /// (INST-165).
    fn examine(&self, name: String, cni_version: String) -> RequiredProgram {
        let is_valid = template::is_program_name(&name);
        let mut found = self
            .directories
            .iter()
            .map(|(place, directory)| (*place, directory.join(&name)));
        let Some((place, path)) = found.find(|(_, path)| is_valid && path.is_file()) else {
            let state = if is_valid {
                ProgramState::Missing
            } else {
                ProgramState::InvalidName
            };
            return RequiredProgram {
                name,
                cni_version,
                state,
                origin: ProgramOrigin::Unknown,
                version: None,
            };
        };
        let state = self.state(path.clone(), &cni_version);
        let is_calicos = matches!(name.as_str(), CALICO | CALICO_IPAM)
            && matches!(state, ProgramState::Supports(..));
        let version = is_calicos.then(|| self.version(&path)).flatten();
        RequiredProgram {
            origin: self.origin(place, &name, &path),
            name,
            cni_version,
            state,
            version,
        }
    }

    fn state(&self, path: PathBuf, cni_version: &str) -> ProgramState {
        let is_executable = path
            .metadata()
            .is_ok_and(|found| found.permissions().mode() & 0o111 != 0);
        if !is_executable {
            return ProgramState::NotExecutable(path);
        }
        match supported_versions::query(&path, cni_version, self.deadline) {
            Ok(versions) => ProgramState::Supports(path, versions),
            Err(error) if self.is_container && error.is_missing_interpreter() => {
                ProgramState::OnlyOnNode(path)
            }
            Err(error) => ProgramState::Broken(path, error.to_string()),
        }
    }

    /// Compares the digest of a file with the record.
    fn origin(&self, place: DirectoryRole, name: &str, path: &Path) -> ProgramOrigin {
        let recorded = self
            .recorded
            .and_then(|state| state.get(place, name))
            .filter(|known| known.digest.is_some());
        let Some((recorded, digest)) = recorded.zip(digest::of_file(path).ok()) else {
            return ProgramOrigin::Unknown;
        };
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
        let ran = child::run_without_capabilities(
            command.arg("-v").stderr(Stdio::null()),
            b"",
            self.deadline,
            BUSY,
        );
        let answer = ran
            .ok()
            .flatten()
            .filter(|answer| answer.status.success())?;
        let output = String::from_utf8(answer.stdout).ok()?;
        Some(output.trim().to_owned())
            .filter(|output| !output.is_empty() && !output.contains(char::is_whitespace))
    }
}

#[cfg(test)]
mod tests;
