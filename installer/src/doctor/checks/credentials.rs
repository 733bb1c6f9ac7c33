//! Checks of the kubeconfig and its token.

use crate::doctor::finding::{Finding, Severity};
use crate::doctor::snapshot::{File, NodeSnapshot, TokenFile};
use crate::token::Claims;

const AGENT: &str = "is the agent running on this node (`kubectl -n kube-system get pods -l k8s-app=calico-cni -o \
    wide`; beside upstream it is calico-node that renews)? Its log, and /readiness on port 9097, say what it lacks";

/// The remedy for a rejected token. A running agent would have renewed the token by itself, so the agent is missing or
/// its own credentials are rejected as well.
const REFUSED: &str = "signing keys or the account were replaced: run the installer again, or delete the pod that \
    renews the token on this node (calico-cni, beside upstream calico-node)";

/// Checks the remaining lifetime of the token.
pub(super) fn check_token(snapshot: &NodeSnapshot) -> Vec<Finding> {
    const NAME: &str = "token";
    let refused = snapshot.cluster.as_ref().and_then(|cluster| cluster.refused.as_ref());
    let Some(TokenFile { path, file }) = &snapshot.token else {
        let way_out = "correct what the configuration has for the API server (k8s_auth_token, certificates)";
        let seen = |refusal| format!("the API server does not know who asks: {refusal}");
        return refused.map(|refusal| Finding::fail(NAME, seen(refusal), way_out)).into_iter().collect();
    };
    let place = path.display();
    let file = match file {
        Ok(file) => file,
        Err(reason) => {
            return vec![Finding::fail("kubeconfig", format!("{place}: {reason}"), "run the installer again")];
        }
    };
    let mut findings = vec![check_mode(&place.to_string(), file)];
    let finding = match &file.claims {
        Some(claims) => check_lifetime(claims, snapshot.now),
        None => Finding::skipped(NAME, format!("{place} holds no token that says when it ends")),
    };
    findings.push(match refused {
        Some(refusal) if finding.state != Severity::Fail => {
            Finding::fail(NAME, format!("{}, but the API server refuses it: {refusal}", finding.seen), REFUSED)
        }
        _ => finding,
    });
    findings
}

/// Checks the mode of the file, and that it verifies the API server's certificate.
fn check_mode(place: &str, file: &File) -> Finding {
    const NAME: &str = "kubeconfig";
    if file.mode & 0o077 != 0 {
        let seen = format!("{place} has mode {:04o}: others can read the token", file.mode);
        return Finding::warn(NAME, seen, format!("chmod 600 {place}"));
    }
    if file.trusts_anybody {
        let seen = format!("{place} takes any certificate of the API server: whoever is in between gets the token");
        return Finding::warn(NAME, seen, "install without SKIP_TLS_VERIFY");
    }
    Finding::ok(NAME, place)
}

/// Checks the remaining lifetime. The agent renews a token after a quarter to half of its lifetime (INST-44), so the
/// last quarter is late.
fn check_lifetime(Claims { exp, iat, sub }: &Claims, now: i64) -> Finding {
    const NAME: &str = "token";
    let remaining = exp - now;
    let owner = if sub.is_empty() { String::new() } else { format!(" of {sub}") };
    if remaining <= 0 {
        return Finding::fail(NAME, format!("the token{owner} expired {} ago", format_span(-remaining)), AGENT);
    }
    let seen = format!("the token{owner} holds for {}", format_span(remaining));
    match (exp - iat) / 4 {
        quarter if *iat > 0 && remaining < quarter => {
            Finding::warn(NAME, format!("{seen}, less than a quarter of its lifetime"), AGENT)
        }
        _ => Finding::ok(NAME, seen),
    }
}

/// Formats a number of seconds for people.
fn format_span(seconds: i64) -> String {
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        7200..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}
