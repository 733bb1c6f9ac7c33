//! [`unready`]: the configuration of the plugins on the nodes, as DaemonSets and ConfigMaps show
//! it.
//!
//! A plugin whose configuration names v1 cannot start a pod from the lock on. The same holds for
//! upstream's plugin as long as v1 exists, if its configuration names no group (MB-3).

use libcalico::migration::{FOLLOW, PLUGINS as ANNOTATION, PluginGroup};

use super::super::requests::Problem;
use super::Checked;
use super::workload::{NODE, PLUGINS, Workload};

const NO_POD: &str = "with v1 locked no pod could start";
const IN_V1: &str = "installs a configuration with crd.projectcalico.org/v1; leave \
                     calico_api_group empty (deploy/components/migrate-to-v3)";
const REMEDY: &str = "If the plugins of all nodes follow a migration, annotate datastoremigration \
                      v1-to-v3 with migration.projectcalico.org/plugins=follow";
const NO_INSTALLER: &str =
    "it has no container install-cni, nor another one with CNI_NETWORK_CONFIG";

/// Returns the reason to wait if no pod could start while v1 is locked.
pub(super) async fn unready(context: &Checked<'_>) -> Result<Option<String>, Problem> {
    let is_stated = context.control.annotation(ANNOTATION) == Some(FOLLOW);
    let mut installing = Vec::new();
    for program in [PLUGINS, NODE] {
        let Some(workload) = Workload::read(context, program).await? else {
            continue;
        };
        match workload.plugin_group() {
            Some(group) => installing.push((workload, group)),
            None if program == PLUGINS => {
                installing.push((workload, PluginGroup::Unknown(NO_INSTALLER.to_owned())))
            }
            None => {}
        }
    }
    if installing.is_empty() && !is_stated {
        let namespace = context.namespace;
        let found =
            format!("no DaemonSet calico-cni or calico-node in {namespace} installs plugins");
        return Ok(Some(format!("{NO_POD}: {found}. {REMEDY}")));
    }
    for (workload, group) in &installing {
        if let Some(reason) = reason_to_wait(workload.program.name, group, is_stated) {
            return Ok(Some(format!("{NO_POD}: {reason}")));
        }
    }
    for (workload, _) in &installing {
        if let Some(missing) = workload.missing_rollout() {
            return Ok(Some(format!("{NO_POD}: wait for {missing}")));
        }
        if let Some(outdated) = workload.outdated_pods(context.requests).await? {
            return Ok(Some(outdated));
        }
    }
    for (workload, _) in installing
        .iter()
        .filter(|(_, group)| *group == PluginGroup::V3)
    {
        let daemon_set = workload.program.name;
        tracing::info!(
            daemon_set,
            "migration: the plugins use v3 before it opens; no pod can start"
        );
    }
    Ok(None)
}

/// Returns the reason to wait for a DaemonSet whose plugins use this group. `is_stated` is true if
/// a person states that the plugins follow a migration.
fn reason_to_wait(name: &str, group: &PluginGroup, is_stated: bool) -> Option<String> {
    match group {
        PluginGroup::V1 => Some(format!("DaemonSet {name} {IN_V1}")),
        PluginGroup::Unknown(reason) if !is_stated => Some(format!(
            "the API group of the plugins of DaemonSet {name} is unknown: {reason}. {REMEDY}"
        )),
        PluginGroup::Follows if name == NODE.name && !is_stated => Some(format!(
            "install-cni of DaemonSet {name} may install upstream's plugin, which stays in v1 as \
             long as v1 exists. {REMEDY}"
        )),
        PluginGroup::Follows | PluginGroup::V3 | PluginGroup::Unknown(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statement_counts_where_the_objects_say_nothing() {
        let unknown = PluginGroup::Unknown("r".to_owned());
        for (name, group, is_stated, expected) in [
            ("calico-cni", &PluginGroup::Follows, false, None),
            ("calico-cni", &PluginGroup::V3, false, None),
            (
                "calico-cni",
                &PluginGroup::V1,
                true,
                Some("crd.projectcalico.org/v1"),
            ),
            ("calico-cni", &unknown, false, Some("is unknown: r. If")),
            ("calico-cni", &unknown, true, None),
            (
                "calico-node",
                &PluginGroup::Follows,
                false,
                Some("upstream's plugin"),
            ),
            ("calico-node", &PluginGroup::Follows, true, None),
            ("calico-node", &PluginGroup::V3, false, None),
            (
                "calico-node",
                &PluginGroup::V1,
                true,
                Some("DaemonSet calico-node installs"),
            ),
        ] {
            let reason = reason_to_wait(name, group, is_stated);
            match expected {
                Some(part) => assert!(
                    reason.as_ref().is_some_and(|text| text.contains(part)),
                    "{reason:?}"
                ),
                None => assert_eq!(reason, None, "{name} {group:?} {is_stated}"),
            }
        }
    }
}
