//! Checks of the configuration that the runtime selects.

use crate::report::{Checked, Finding, Severity, fail, pass, warn};
use crate::snapshot::{Content, NodeSnapshot, SelectedConfig};
use installation::conflist::{CILIUM, CILIUM_REMEDY};
use installation::template::ConfigProblem;

pub(super) const REINSTALL: &str =
    "run the installer again (`calico install`, or delete the pod of the DaemonSet on this node)";

/// Checks that a runtime selects a file, and that this file is Calico's configuration or delegates
/// to it.
pub(super) fn check_selected(snapshot: &NodeSnapshot) -> Checked {
    let directory = snapshot.net_dir.display();
    let names = match &snapshot.candidates {
        Ok(names) => names,
        Err(reason) => {
            let remedy =
                "if the directory is missing, create it, or restart containerd, which creates it";
            return fail(format!("{directory}: {reason}"), remedy);
        }
    };
    let Some(SelectedConfig { name, content }) = &snapshot.selected else {
        let observation = format!(
            "{directory} contains no .conf, .conflist or .json file: the node is not ready"
        );
        return fail(observation, REINSTALL);
    };
    let content = match content {
        Ok(content) => content,
        Err(reason) => {
            let remedy = format!(
                "correct or remove {directory}/{name}; containerd loads no other file while this \
                 one exists"
            );
            return fail(format!("{name}: {reason}"), remedy);
        }
    };
    if content.is_calicos() {
        return check_calico(name, content);
    }
    // The configuration of Multus sorts first, and may call Calico's.
    if let Some(delegate) = &snapshot.delegate {
        return check_delegate(name, content, delegate);
    }
    let ours = names
        .iter()
        .find(|other| *other != name && other.contains("calico"));
    let absent = if ours.is_none() {
        "; there is no configuration of Calico"
    } else {
        ""
    };
    let plugins = content.plugins.join(", ");
    let observation = format!("{name} sorts first and is not Calico's: it runs {plugins}{absent}");
    let remedy = match ours {
        Some(ours) => {
            format!("remove {directory}/{name}, or give {ours} a name that sorts before it")
        }
        // Cilium with cni.exclusive renames every other configuration.
        None if content.plugins.iter().any(|plugin| plugin == CILIUM) => CILIUM_REMEDY.to_owned(),
        None => REINSTALL.to_owned(),
    };
    fail(observation, remedy)
}

fn check_calico(file: &str, content: &Content) -> Checked {
    let Content {
        network,
        plugins,
        cni_version,
        rejection,
        ..
    } = content;
    match rejection {
        Some(reason) => fail(
            format!(
                "{file}: Calico's plugin rejects the configuration ({reason}): every ADD and DEL \
                 fails"
            ),
            "correct the value in the installer's environment or template (ConfigMap \
             calico-cni-config; with upstream's manifest calico-config), and run the installer \
             again",
        ),
        None => pass(format!(
            "{file}: network {network}, {}, cniVersion {cni_version}",
            plugins.join(", ")
        )),
    }
}

/// Checks Calico's configuration `ours` behind `caller`, the configuration of a plugin that calls
/// other networks. `first` is the file name of `caller`.
fn check_delegate(first: &str, caller: &Content, ours: &SelectedConfig) -> Checked {
    let SelectedConfig { name, content } = ours;
    let content = match content {
        Ok(content) => content,
        Err(reason) => return fail(format!("{name}, behind {first}: {reason}"), REINSTALL),
    };
    let found = check_calico(name, content)?;
    if found.state != Severity::Ok {
        return Ok(found);
    }
    let observation = format!(
        "{first} runs {}; behind it {}",
        caller.plugins.join(", "),
        found.observation
    );
    let stem = name
        .rsplit_once('.')
        .map_or(name.as_str(), |(stem, _)| stem);
    if caller
        .delegate_names
        .iter()
        .any(|called| [name, stem, &content.network].contains(&called.as_str()))
    {
        return pass(observation);
    }
    let remedy =
        format!("check that {first} delegates to the network of {name}, which it does not name");
    warn(observation, remedy)
}

/// Reports files that count as unused, because another file sorts before them (INST-160).
pub(super) fn check_shadowed(snapshot: &NodeSnapshot) -> Option<Checked> {
    let names = snapshot.candidates.as_ref().ok()?;
    let (first, rest) = names.split_first()?;
    let is_called = |name: &str| {
        snapshot
            .delegate
            .as_ref()
            .is_some_and(|delegate| delegate.name == name)
    };
    let rest: Vec<&str> = rest
        .iter()
        .map(String::as_str)
        .filter(|name| !is_called(name))
        .collect();
    if rest.is_empty() {
        return None;
    }
    let observation = format!("{} after {first}, never loaded", rest.join(", "));
    let Some(ours) = rest.iter().find(|name| name.contains("calico")) else {
        return Some(pass(observation));
    };
    let is_copy = |selected: &SelectedConfig| {
        selected
            .content
            .as_ref()
            .is_ok_and(Content::is_copy_of_calicos)
    };
    if !first.contains("calico") && snapshot.selected.as_ref().is_some_and(is_copy) {
        return Some(pass(format!(
            "{} after {first}, which is a copy of {ours}",
            rest.join(", ")
        )));
    }
    let is_calicos = snapshot.contents().any(|(_, content)| content.is_calicos());
    let directory = snapshot.net_dir.display();
    let remedy = if is_calicos {
        format!("remove {directory}/{ours}: only one of the two files is in use")
    } else {
        format!(
            "remove {directory}/{ours} only if the network of this node is to be that of {first}"
        )
    };
    Some(warn(observation, remedy))
}

/// Reports further problems of the configurations.
pub(super) fn check_problems(snapshot: &NodeSnapshot) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, content) in snapshot.contents() {
        findings.extend(
            content
                .problems
                .iter()
                .filter_map(|problem| check_problem(name, problem)),
        );
        let appended = check_appended(snapshot, content);
        findings.extend(appended.map(|checked| Finding::new("appended plugins", checked)));
    }
    findings
}

fn check_problem(file: &str, problem: &ConfigProblem) -> Option<Finding> {
    let (name, observation, remedy) = match problem {
        // `check_programs` reports the program.
        ConfigProblem::MissingProgram { .. } | ConfigProblem::InvalidProgram(_) => return None,
        ConfigProblem::Placeholder(placeholder) => (
            "placeholders",
            format!("{file} still has {placeholder}"),
            "remove the placeholder, which the installer does not replace, from the template \
             (ConfigMap calico-cni-config; with upstream's manifest calico-config)",
        ),
        ConfigProblem::NoPlugin => ("plugins", format!("{file} names no plugin"), REINSTALL),
        ConfigProblem::TooNew(version) => (
            "cniVersion",
            format!("{file} has the unsupported cniVersion {version}"),
            "write 1.1.0 or older into the template, or install a newer Calico",
        ),
    };
    Some(Finding::new(name, fail(observation, remedy)))
}

fn check_appended(snapshot: &NodeSnapshot, content: &Content) -> Option<Checked> {
    let (first, network) = (content.appended.first()?, &content.network);
    Some(warn(
        format!("libcni appends {} to the list", content.appended.join(", ")),
        format!(
            "remove {}/{network}/{first} unless it is meant to be there",
            snapshot.net_dir.display()
        ),
    ))
}
