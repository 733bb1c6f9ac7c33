//! The parts that the commands `install` and `refresh-token` share: settings, exit status and the agent.

use std::fs;
use std::process::ExitCode;

use ipam_plugin::process;
use netconf::conf::DatastoreType;

use crate::agent::{self, AgentError, AgentSettings, ApiGroupWatch, Pass, Plugins, ReplayError, deferred_dels};
use crate::cluster::group_of;
use crate::install::{InstallError, InstallReconciler, Installation};
use crate::kubeconfig;
use crate::service_account::ServiceAccountError;
use crate::settings::{Settings, SettingsError};

/// Reasons for a failed command.
#[derive(Debug, thiserror::Error)]
pub(super) enum CommandError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Account(#[from] ServiceAccountError),
    #[error(transparent)]
    Install(#[from] InstallError),
    #[error(transparent)]
    AgentSettings(#[from] agent::AgentSettingsError),
    #[error(transparent)]
    Agent(#[from] AgentError),
}

/// Returns exit status 0, or logs the error and returns exit status 1.
pub(super) fn exit_code(outcome: Result<(), CommandError>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the settings, and a function that looks up environment variables.
pub(super) fn read_environment() -> Result<(Settings, impl Fn(&str) -> Option<String>), SettingsError> {
    let lookup = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let hostname = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Ok((Settings::from_environment(&lookup, hostname.trim())?, lookup))
}

/// Runs the agent until SIGTERM (INST-37). `replay` replays deferred DELs; the plugin provides it.
pub(super) fn run_agent(
    installation: &Installation<'_>,
    mut reconciler: InstallReconciler<'_>,
    lookup: &dyn Fn(&str) -> Option<String>,
    replay: impl AsyncFn(&Plugins) -> Result<Pass, ReplayError>,
) -> Result<(), CommandError> {
    let Installation { settings, layout, account, .. } = *installation;
    let agent_settings = AgentSettings::from_environment(lookup)?;
    let net_dir = layout.net_dir(&settings.net_dir);
    let (kubeconfig, conf) = (net_dir.join(kubeconfig::NAME), net_dir.join(&settings.conf_name));
    let on_kubernetes = installation.calicos().filter(|conf| conf.datastore.kind() == DatastoreType::Kubernetes);
    let group = on_kubernetes
        .zip(account)
        .map(|(conf, account)| ApiGroupWatch { account: account.clone(), configured: group_of(&conf) });
    let replaying = deferred_dels::replay_repeatedly(&conf, layout, &settings.net_dir, replay);
    process::block_on(agent::run(
        &agent_settings,
        account.cloned(),
        kubeconfig,
        group,
        || reconciler.reconcile(),
        replaying,
    ))?;
    Ok(())
}
