//! Checks of the programs that the configuration names, and of the installer's records.

use super::configuration::REINSTALL;
use crate::doctor::finding::Finding;
use crate::doctor::snapshot::{NodeSnapshot, ProgramOrigin, ProgramState, RequiredProgram};
use crate::layout::{CALICO, CALICO_IPAM};

/// Returns one finding for each program, and one if the records cannot be read.
pub(super) fn check(snapshot: &NodeSnapshot) -> Vec<Finding> {
    let mut findings: Vec<Finding> =
        snapshot.programs.iter().map(|program| check_program(program, &snapshot.version)).collect();
    findings.extend(snapshot.notes.as_ref().err().map(|reason| {
        let way_out =
            "until it can be read, `calico uninstall` leaves everything; remove it and run the installer again";
        Finding::warn("installer's notes", reason.clone(), way_out)
    }));
    findings
}

fn check_program(program: &RequiredProgram, own_version: &str) -> Finding {
    let RequiredProgram { name, cni_version: wanted, state, .. } = program;
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
        // Runtimes call loopback with a version of their own.
        ProgramState::Speaks(path, versions)
            if name != "loopback" && !wanted.is_empty() && !versions.iter().any(|v| v == wanted) =>
        {
            let seen = format!("{} does not speak cniVersion {wanted}, but {}", path.display(), versions.join(", "));
            Finding::fail(title, seen, "install a newer one, or lower cniVersion in the template")
        }
        ProgramState::Speaks(path, versions) => {
            let newest = versions.last().map_or("?", String::as_str);
            let seen = match &program.version {
                Some(version) => format!("{} {version}, up to {newest}", path.display()),
                None => format!("{}, up to {newest}", path.display()),
            };
            check_origin(title, seen, program, own_version)
        }
    }
}

/// Checks the origin of a working program. It may be upstream's, or from an installation that did not finish.
fn check_origin(title: String, seen: String, program: &RequiredProgram, own_version: &str) -> Finding {
    let other = program.version.as_deref().filter(|version| *version != own_version);
    match (program.origin, other) {
        (ProgramOrigin::Other, _) => {
            // The installer replaces Calico's own programs, but keeps another program under the name of any other
            // plugin.
            let way_out = match program.name.as_str() {
                CALICO | CALICO_IPAM => format!("unless it was meant, as with another installer: {REINSTALL}"),
                _ => format!("unless it was meant: remove it, and {REINSTALL}"),
            };
            Finding::warn(title, format!("{seen}, is not the file that was installed"), way_out)
        }
        (ProgramOrigin::Former, _) => Finding::warn(
            title,
            format!("{seen}, is that of an earlier installation: the last one did not end"),
            REINSTALL,
        ),
        (ProgramOrigin::Installed | ProgramOrigin::Unknown, Some(_)) => {
            Finding::warn(title, format!("{seen}, is not of this doctor's version, {own_version}"), REINSTALL)
        }
        (ProgramOrigin::Installed | ProgramOrigin::Unknown, None) => Finding::ok(title, seen),
    }
}
