//! The configuration that the runtime picks, and the programs that it names.

use crate::doctor::facts::{Chosen, Content, Facts, Program, ProgramState};
use crate::doctor::finding::Finding;
use crate::template;

const REINSTALL: &str = "run the installer again (`calico install`, or delete the pod of the DaemonSet on this node)";

/// Which file it is, and whether it is ours.
pub(super) fn chosen(facts: &Facts) -> Finding {
    const NAME: &str = "configuration";
    let directory = facts.net_dir.display();
    let names = match &facts.candidates {
        Ok(names) => names,
        Err(reason) => {
            return Finding::fail(NAME, format!("{directory}: {reason}"), "create it; containerd does when it starts");
        }
    };
    let Some(Chosen { name, content }) = &facts.chosen else {
        let seen = format!("{directory} holds no .conf, .conflist or .json: the node is not ready");
        return Finding::fail(NAME, seen, REINSTALL);
    };
    let content = match content {
        Ok(content) => content,
        Err(reason) => {
            let way_out = format!("mend or remove {directory}/{name}; containerd loads nothing else while it is there");
            return Finding::fail(NAME, format!("{name}: {reason}"), way_out);
        }
    };
    if content.plugins.iter().any(|plugin| plugin == "calico") {
        let plugins = content.plugins.join(", ");
        return Finding::ok(
            NAME,
            format!("{name}: network {}, {plugins}, cniVersion {}", content.network, content.cni_version),
        );
    }
    let seen = format!("{name} is first and is not Calico's: it runs {}", content.plugins.join(", "));
    match names.iter().find(|other| other.contains("calico")) {
        // Multus and its like come first and call Calico by themselves.
        Some(ours) if content.plugins.iter().any(|plugin| plugin.starts_with("multus")) => {
            Finding::warn(NAME, seen, format!("look whether its delegate is the network of {ours}"))
        }
        Some(ours) => {
            Finding::fail(NAME, seen, format!("remove {directory}/{name}, or give {ours} a name that sorts before it"))
        }
        None => Finding::fail(NAME, seen, REINSTALL),
    }
}

/// Files that no runtime takes as long as there is another before them.
pub(super) fn shadowed(facts: &Facts) -> Option<Finding> {
    let names = facts.candidates.as_ref().ok()?;
    let (first, rest) = names.split_first()?;
    let ours: Vec<&str> = rest.iter().map(String::as_str).filter(|name| name.contains("calico")).collect();
    if rest.is_empty() {
        return None;
    }
    let seen = format!("{} after {first}, never loaded", rest.join(", "));
    Some(match ours.is_empty() {
        true => Finding::ok("other configurations", seen),
        false => Finding::warn(
            "other configurations",
            seen,
            format!("remove {}/{}: one of the two is left over", facts.net_dir.display(), ours[0]),
        ),
    })
}

/// What is odd about it, each thing alone. Programs are looked at by themselves.
pub(super) fn oddities(facts: &Facts) -> Vec<Finding> {
    let Some(Chosen { name, content: Ok(content) }) = &facts.chosen else { return Vec::new() };
    let mut findings: Vec<Finding> = content.findings.iter().filter_map(|odd| oddity(name, odd)).collect();
    findings.extend(appended(facts, content));
    findings
}

fn oddity(file: &str, odd: &template::Finding) -> Option<Finding> {
    Some(match odd {
        template::Finding::MissingProgram { .. } => return None,
        template::Finding::Placeholder(placeholder) => Finding::fail(
            "placeholders",
            format!("{file} still has {placeholder}"),
            "it is no placeholder of the installer's: take it out of the template (ConfigMap calico-config)",
        ),
        template::Finding::NoPlugin => Finding::fail("plugins", format!("{file} names no plugin"), REINSTALL),
        template::Finding::TooNew { version } => Finding::fail(
            "cniVersion",
            format!("{file} asks for {version}"),
            "write 1.1.0 or older into the template, or install a newer Calico",
        ),
    })
}

fn appended(facts: &Facts, content: &Content) -> Option<Finding> {
    let (first, network) = (content.appended.first()?, &content.network);
    Some(Finding::warn(
        "appended plugins",
        format!("libcni appends {} to the list", content.appended.join(", ")),
        format!("remove {}/{network}/{first} unless it is meant to be there", facts.net_dir.display()),
    ))
}

/// One finding for each program.
pub(super) fn programs(facts: &Facts) -> Vec<Finding> {
    let version = match &facts.chosen {
        Some(Chosen { content: Ok(content), .. }) => content.cni_version.as_str(),
        _ => "",
    };
    facts.programs.iter().map(|program| of_program(program, version)).collect()
}

fn of_program(Program { name, state }: &Program, wanted: &str) -> Finding {
    let title = format!("program {name}");
    match state {
        ProgramState::Missing if name == "loopback" => Finding::fail(
            title,
            "not there: containerd needs it for every pod (CRI-O does not)",
            "install the CNI project's plugins, or the installer with CNI_INSTALL_PLUGINS=all",
        ),
        ProgramState::Missing => Finding::fail(title, "not there: no pod starts", REINSTALL),
        ProgramState::NotExecutable(path) => Finding::fail(
            title,
            format!("{} is not executable", path.display()),
            format!("chmod 755 {}", path.display()),
        ),
        ProgramState::Broken(path, reason) => Finding::fail(title, format!("{}: {reason}", path.display()), REINSTALL),
        // loopback is called with a version of the runtime's own.
        ProgramState::Speaks(path, versions)
            if name != "loopback" && !wanted.is_empty() && !versions.iter().any(|v| v == wanted) =>
        {
            let seen = format!("{} does not speak cniVersion {wanted}, but {}", path.display(), versions.join(", "));
            Finding::fail(title, seen, "install a newer one, or lower cniVersion in the template")
        }
        ProgramState::Speaks(path, versions) => {
            Finding::ok(title, format!("{}, up to {}", path.display(), versions.last().map_or("?", String::as_str)))
        }
    }
}
