//! Checks of the files that the configuration names: the programs, the kubeconfig and its token;
//! and of the installer's records.

use super::configuration::REINSTALL;
use crate::report::{Checked, Finding, Severity, fail, pass, warn};
use crate::snapshot::{
    KubeconfigFile, NodeSnapshot, ProgramOrigin, ProgramState, RequiredProgram, TokenFile,
    Unobserved,
};
use installation::directory_access::{REMEDY, UnwritableDirectory};
use installation::layout::{CALICO, CALICO_IPAM};
use installation::token::Claims;

const AGENT: &str = "check that the agent runs on this node (`kubectl -n kube-system get pods -l \
                     k8s-app=calico-cni -o wide`; beside upstream, calico-node renews the token), \
                     and read its log and /readiness on port 9097";

/// The remedy for a rejected token.
const REFUSED: &str = "the signing keys or the account may have been replaced: run the installer \
                       again, or delete the pod that renews the token on this node (calico-cni, \
                       beside upstream calico-node)";

/// Returns a finding about directories that root may not write without a capability. Only a warning
/// if this process has the capability: the containers may have it too.
pub(super) fn check_directories(snapshot: &NodeSnapshot) -> Option<Finding> {
    let directories = &snapshot.unwritable;
    let observations: Vec<String> = directories
        .iter()
        .map(UnwritableDirectory::observation)
        .collect();
    let observation = observations.join("; ");
    let checked = if directories.iter().any(|directory| directory.is_denied) {
        fail(observation, REMEDY)
    } else {
        warn(
            observation,
            format!("{REMEDY}; a calico-cni with that component needs nothing more"),
        )
    };
    (!directories.is_empty()).then(|| Finding::new("directories", checked))
}

pub(super) fn check_programs(snapshot: &NodeSnapshot) -> Vec<Finding> {
    // The programs of another network are its owner's matter. The check of the configuration names
    // that network. A file with Calico's name and without its plugin is a damaged configuration of
    // Calico.
    let mut contents = snapshot.contents().peekable();
    let is_foreign = contents.peek().is_some()
        && !contents.any(|(name, it)| it.is_calicos() || name.contains("calico"));
    let concerns_calico =
        |name: &str| !is_foreign || ["calico", "calico-ipam", "loopback"].contains(&name);
    let checked = snapshot
        .programs
        .iter()
        .filter(|program| concerns_calico(&program.name));
    let checked = checked.map(|program| (&program.name, check_program(program, &snapshot.version)));
    let findings = checked.map(|(name, checked)| Finding::new(format!("program {name}"), checked));
    let mut findings: Vec<Finding> = findings.collect();
    if let Err(reason) = &snapshot.records {
        let remedy = "remove the file and run the installer again; until then `calico uninstall` \
                      removes nothing";
        findings.push(Finding::new(
            "installer's notes",
            warn(reason.clone(), remedy),
        ));
    }
    findings
}

fn check_program(program: &RequiredProgram, own_version: &str) -> Checked {
    let RequiredProgram {
        name,
        cni_version: wanted,
        state,
        ..
    } = program;
    match state {
        ProgramState::Missing if name == "loopback" => fail(
            "the program is missing: containerd needs it for every pod by default (CRI-O does not)",
            "install the CNI project's plugins, or the installer with CNI_INSTALL_PLUGINS=all",
        ),
        ProgramState::Missing => fail("the program is missing: no pod starts", REINSTALL),
        ProgramState::InvalidName => fail(
            "the name contains '/', which runtimes and plugins refuse: no pod starts",
            "write the name of a file in a plugin directory into the template",
        ),
        ProgramState::NotExecutable(path) => fail(
            format!("{} is not executable", path.display()),
            format!("chmod 755 {}", path.display()),
        ),
        ProgramState::OnlyOnNode(path) => warn(
            format!(
                "{} is dynamically linked or a script, and cannot be run in this container",
                path.display()
            ),
            format!(
                "run `calico doctor` on the node, to learn if the program supports cniVersion \
                 {wanted}"
            ),
        ),
        ProgramState::Broken(path, reason) => {
            fail(format!("{}: {reason}", path.display()), REINSTALL)
        }
        // Runtimes call loopback with a version of their own.
        ProgramState::Supports(path, versions)
            if name != "loopback"
                && !wanted.is_empty()
                && !versions.iter().any(|v| v == wanted) =>
        {
            let observation = format!(
                "{} does not support cniVersion {wanted}, but {}",
                path.display(),
                versions.join(", ")
            );
            fail(
                observation,
                "install a newer program, or lower cniVersion in the template",
            )
        }
        ProgramState::Supports(path, versions) => {
            let newest = versions.last().map_or("?", String::as_str);
            let observation = match &program.version {
                Some(version) => format!("{} {version}, up to {newest}", path.display()),
                None => format!("{}, up to {newest}", path.display()),
            };
            check_origin(observation, program, own_version)
        }
    }
}

/// Checks the origin of a working program.
fn check_origin(observation: String, program: &RequiredProgram, own_version: &str) -> Checked {
    let other = program
        .version
        .as_deref()
        .filter(|version| *version != own_version);
    match (program.origin, other) {
        (ProgramOrigin::Other, _) => {
            // By default the installer replaces a file of another plugin only if it installed that
            // file itself.
            let remedy = match program.name.as_str() {
                CALICO | CALICO_IPAM => {
                    format!("unless another installer wrote it on purpose: {REINSTALL}")
                }
                _ => format!("unless it is there on purpose: remove the file, and {REINSTALL}"),
            };
            warn(format!("{observation}, is not the installed file"), remedy)
        }
        (ProgramOrigin::Former, _) => warn(
            format!(
                "{observation}, is from an earlier installation: the last installation did not \
                 finish"
            ),
            REINSTALL,
        ),
        (ProgramOrigin::Installed | ProgramOrigin::Unknown, Some(_)) => warn(
            format!("{observation}, does not have the version of this doctor, {own_version}"),
            REINSTALL,
        ),
        (ProgramOrigin::Installed | ProgramOrigin::Unknown, None) => pass(observation),
    }
}

/// Checks the kubeconfig and the remaining lifetime of the token in it.
pub(super) fn check_token(snapshot: &NodeSnapshot) -> Vec<Finding> {
    let api = snapshot
        .cluster
        .as_ref()
        .and_then(|cluster| cluster.api.as_ref());
    let refused = api.and_then(|api| api.rejection.as_ref());
    let Some(TokenFile { path, file }) = &snapshot.token else {
        let remedy = "correct the credentials for the API server in the configuration \
                      (k8s_auth_token, certificates)";
        let observation = |refusal| format!("the API server rejects the credentials: {refusal}");
        return refused
            .map(|refusal| Finding::new("token", fail(observation(refusal), remedy)))
            .into_iter()
            .collect();
    };
    let place = path.display().to_string();
    let file = match file {
        Ok(file) => file,
        Err(reason) => {
            let observation = format!("{place}: {reason}");
            return vec![Finding::new(
                "kubeconfig",
                fail(observation, "run the installer again"),
            )];
        }
    };
    let lifetime = match &file.claims {
        Some(claims) => check_lifetime(claims, snapshot.now),
        None => Err(Unobserved::new(format!(
            "{place} contains no token with an expiry"
        ))),
    };
    let mut token = Finding::new("token", lifetime);
    if let Some(refusal) = refused.filter(|_| token.state != Severity::Fail) {
        let observation = format!(
            "{}, but the API server rejects it: {refusal}",
            token.observation
        );
        token = Finding::new("token", fail(observation, REFUSED));
    }
    vec![
        Finding::new("kubeconfig", check_kubeconfig(&place, file)),
        token,
    ]
}

fn check_kubeconfig(place: &str, file: &KubeconfigFile) -> Checked {
    if file.mode & 0o077 != 0 {
        let observation = format!(
            "{place} has mode {:04o}: other users can read the token",
            file.mode
        );
        return warn(observation, format!("chmod 600 {place}"));
    }
    if file.accepts_any_certificate {
        let observation = format!(
            "{place} accepts any certificate of the API server: an attacker in between gets the \
             token"
        );
        return warn(observation, "install without SKIP_TLS_VERIFY");
    }
    pass(place)
}

/// Checks the remaining lifetime. The agent tries to renew a token after half of its lifetime at
/// most (INST-44), so the last quarter is late.
fn check_lifetime(Claims { exp, iat, sub, .. }: &Claims, now: i64) -> Checked {
    let remaining = exp - now;
    let owner = if sub.is_empty() {
        String::new()
    } else {
        format!(" of {sub}")
    };
    if remaining <= 0 {
        return fail(
            format!("the token{owner} expired {} ago", format_span(-remaining)),
            AGENT,
        );
    }
    let observation = format!("the token{owner} is valid for {}", format_span(remaining));
    if *iat > 0 && remaining < (exp - iat) / 4 {
        return warn(
            format!("{observation}, less than a quarter of its lifetime"),
            AGENT,
        );
    }
    pass(observation)
}

fn format_span(seconds: i64) -> String {
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        7200..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}
