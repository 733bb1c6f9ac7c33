//! Checks of printed texts.

use std::fs;

use anyhow::{Result, ensure};

use super::others::Victim;
use super::shared_nodes::SharedNodes;

/// Beginning of a forged line in the tenant's texts.
pub(crate) const FORGED: &str = "FORGED";

pub(crate) const LOGS: &str = "/var/log/calico/cni";

/// Checks that a printed text has no control character for terminals and no line of the tenant.
pub(crate) fn check(place: &str, printed: &str) -> Result<()> {
    let bad = printed.chars().find(|c| {
        let turns = matches!(
            c, '\u{202a}'..='\u{202e}' | '\u{2028}' | '\u{2029}' | '\u{2066}'..='\u{2069}',
        );
        turns || c.is_control() && !matches!(c, '\n' | '\t')
    });
    ensure!(bad.is_none(), "{place} has {bad:?}: {printed:?}");
    let forged = printed
        .lines()
        .find(|line| line.trim_start().starts_with(FORGED));
    ensure!(
        forged.is_none(),
        "{place} has a line of the tenant's: {forged:?}"
    );
    Ok(())
}

/// Checks that a text for people of a namespace names no owner of another namespace. Does nothing
/// without Kubernetes, where the tenant writes any namespace into CNI_ARGS.
pub(crate) fn check_owners(shared: &SharedNodes<'_>, namespace: &str, printed: &str) -> Result<()> {
    let is_elsewhere = |victim: &&Victim| shared.client.is_some() && victim.namespace != namespace;
    for Victim {
        namespace,
        name,
        container_id,
        handle,
        ..
    } in shared.victims.iter().filter(is_elsewhere)
    {
        let (handle, pod) = (
            format!("held by handle {handle}"),
            format!("pod {namespace}/{name}"),
        );
        let container = format!("(container {container_id}");
        let named = [
            (true, handle),
            (!name.is_empty(), pod),
            (!container_id.is_empty(), container),
        ];
        for (_, text) in named.into_iter().filter(|(is_known, _)| *is_known) {
            ensure!(
                !printed.contains(&text),
                "a person of another namespace reads {text:?} in {printed:?}"
            );
        }
    }
    Ok(())
}

pub(crate) fn check_all(shared: &SharedNodes<'_>) -> Result<()> {
    for node in &shared.nodes {
        let logs = node.on(|_| {
            let files = fs::read_dir(LOGS).into_iter().flatten().flatten();
            Ok(files
                .map(|file| fs::read(file.path()).unwrap_or_default())
                .collect::<Vec<_>>())
        })?;
        ensure!(
            logs.iter().any(|log| !log.is_empty()),
            "{} has no log",
            node.name
        );
        for log in logs {
            check("a log", &String::from_utf8_lossy(&log))?;
        }
    }
    if let Some(collector) = &shared.collector {
        let log = collector.log();
        ensure!(!log.is_empty(), "kube-controllers have no log");
        check("the log of kube-controllers", &log)?;
    }
    for args in [
        &["check", "--settle", "0"][..],
        &["show", "--show-blocks"],
        &["usage"],
        &["endpoints"],
    ] {
        let shown = shared
            .cluster
            .store
            .calico_ipam(&shared.cluster.plugins, args)?;
        check(&format!("calico-ipam {args:?}"), &shown.stdout)?;
        check(&format!("calico-ipam {args:?}"), &shown.stderr)?;
    }
    let Some(client) = &shared.client else {
        return Ok(());
    };
    let events = client.get("/api/v1/events")?.checked()?;
    for event in events["items"].as_array().into_iter().flatten() {
        let namespace = event["metadata"]["namespace"].as_str().unwrap_or_default();
        check_owners(
            shared,
            namespace,
            event["message"].as_str().unwrap_or_default(),
        )?;
        for field in ["message", "reason", "action"] {
            check("an Event", event[field].as_str().unwrap_or_default())?;
        }
    }
    Ok(())
}
