//! [`unready`]: the programs that do not use v3 yet (MIG-63).

use libcalico::migration::{FOLLOW, PLUGINS as ANNOTATION, PluginGroup};

use super::super::requests::Problem;
use super::Checked;
use super::workload::{CANAL, NODE, PLUGINS, TYPHA, Workload};

/// Upstream's text.
const NOT_SET: &str = "Waiting for user to set CALICO_API_GROUP=projectcalico.org/v3 on";

/// Returns the reason to wait for the programs that exist. Upstream looks neither at the plugins
/// nor at the roll-out of Typha.
pub(super) async fn unready(context: &Checked<'_>) -> Result<Option<String>, Problem> {
    let mut workloads = Vec::new();
    for program in [PLUGINS, NODE, CANAL, TYPHA] {
        workloads.extend(Workload::read(context, program).await?);
    }
    let is_stated = context.control.annotation(ANNOTATION) == Some(FOLLOW);
    let not_set: Vec<&str> = workloads
        .iter()
        .filter(|workload| !is_configured(workload, is_stated))
        .map(|workload| workload.program.name)
        .collect();
    if !not_set.is_empty() {
        return Ok(Some(format!("{NOT_SET} {}", not_set.join(" and "))));
    }
    for workload in &workloads {
        if let Some(missing) = workload.missing_rollout() {
            return Ok(Some(format!("Waiting for {missing}")));
        }
        if let Some(outdated) = workload.outdated_pods(context.requests).await? {
            return Ok(Some(outdated));
        }
    }
    Ok(None)
}

/// Returns true if the programs of a workload use v3. The plugins follow if their configuration
/// names no group; other programs use v1 as long as it exists.
fn is_configured(workload: &Workload, is_stated: bool) -> bool {
    let do_plugins_follow = match workload.plugin_group() {
        Some(PluginGroup::Follows | PluginGroup::V3) => true,
        Some(PluginGroup::Unknown(_)) => is_stated,
        Some(PluginGroup::V1) => false,
        None => workload.program != PLUGINS || is_stated,
    };
    do_plugins_follow && (workload.program == PLUGINS || workload.is_set_to_v3())
}
