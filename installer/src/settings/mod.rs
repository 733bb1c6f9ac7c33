//! [`Settings`]: the environment variables of an installation.
//!
//! Empty variables follow upstream's rules, because manifests and scripts rely on them (INST-8): an empty text stays
//! empty, and an empty Boolean is an error. An empty number counts as unset; in upstream it breaks the configuration
//! (INST-10).

mod pools;
pub mod variables;

use std::path::PathBuf;
use std::time::Duration;

pub use self::pools::PoolRequest;
use crate::environment::Environment;
pub use crate::environment::SettingsError;
use crate::template::Values;

/// The settings of an installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The source of the configuration's template.
    pub template: Template,
    /// The values of the template's placeholders.
    pub values: Values,
    /// The file name of the configuration.
    pub conf_name: String,
    /// The file name of a configuration that this one replaces; the same name for none.
    pub old_conf_name: String,
    /// The mode of the configuration.
    pub conf_mode: u32,
    /// The configuration directory on the node.
    pub net_dir: String,
    /// The mount point of the TLS files for etcd.
    pub tls_assets: PathBuf,
    /// The plugins to install beside Calico's.
    pub extra_plugins: ExtraPlugins,
    /// The treatment of existing programs.
    pub update: Update,
    /// Whether to create `calico-ipam` as a hard link to `calico` instead of a copy.
    pub link_ipam: bool,
    /// Maximum time for trying out the new configuration, which is then used even if it fails. Zero disables the trial.
    pub try_for: Duration,
    /// Whether to keep running as the agent (INST-37).
    pub stay: bool,
    /// The service account of the plugins.
    pub service_account: String,
    /// The name of this node, if given.
    pub node_name: Option<String>,
    /// The host name of this machine. The template uses it if the name of the node is not given.
    pub host_name: String,
    /// The first pool of each family, if requested.
    pub pools: Vec<PoolRequest>,
}

/// The source of the configuration's template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Template {
    /// The built-in template.
    BuiltIn,
    /// The text of a variable.
    Text(String),
    /// A file in the container.
    File(PathBuf),
}

/// The plugins to install beside Calico's. Upstream's images up to v3.32 contain several (INST-38).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExtraPlugins {
    /// No plugin.
    None,
    /// All plugins in the image except these.
    AllBut(Vec<String>),
}

/// The treatment of programs that exist already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    /// All are kept.
    Never,
    /// Calico's programs are replaced. Other plugins are replaced only if this installer installed them: those of a
    /// distribution are usually newer (INST-40).
    Ours,
    /// All are replaced.
    Always,
}

impl Settings {
    /// Reads the settings. `hostname` is the name of this machine.
    ///
    /// # Errors
    /// Returns an error if a variable has an invalid value.
    pub fn from_environment(
        lookup: &dyn Fn(&str) -> Option<String>,
        hostname: &str,
    ) -> Result<Settings, SettingsError> {
        let environment = Environment { lookup };
        let net_dir = environment.text("CNI_NET_DIR", crate::layout::NET_DIR);
        let host_name = hostname.to_lowercase();
        let conf_name = file_name("CNI_CONF_NAME", environment.text("CNI_CONF_NAME", DEFAULT_CONF_NAME))?;
        Ok(Settings {
            template: template(&environment),
            values: Values::new(&environment, &host_name, &net_dir),
            host_name,
            old_conf_name: old_conf_name(&environment)?,
            conf_name,
            conf_mode: environment.mode("TEST_FILE_PERMISSION", 0o600)?,
            net_dir,
            tls_assets: environment.text("TLS_ASSETS_DIR", "/calico-secrets").into(),
            extra_plugins: extra_plugins(&environment)?,
            update: match environment.truth("UPDATE_CNI_BINARIES")? {
                None => Update::Ours,
                Some(true) => Update::Always,
                Some(false) => Update::Never,
            },
            link_ipam: environment.truth("CNI_LINK_IPAM")?.unwrap_or(true),
            try_for: environment.seconds("CNI_TRY_SECONDS", DEFAULT_TRY)?,
            stay: environment.truth("SLEEP")?.unwrap_or(true),
            service_account: environment.some("CALICO_CNI_SERVICE_ACCOUNT").unwrap_or("calico-cni-plugin".into()),
            node_name: environment.some("KUBERNETES_NODE_NAME"),
            pools: PoolRequest::from_environment(&environment)?,
        })
    }
}

const DEFAULT_CONF_NAME: &str = "10-calico.conflist";
const DEFAULT_TRY: Duration = Duration::from_secs(30);

/// Returns the template. As in upstream, the file wins over the text.
fn template(environment: &Environment<'_>) -> Template {
    match (environment.some("CNI_NETWORK_CONFIG_FILE"), environment.some("CNI_NETWORK_CONFIG")) {
        (Some(file), _) => Template::File(file.into()),
        (None, Some(text)) => Template::Text(text),
        (None, None) => Template::BuiltIn,
    }
}

/// Returns the name of the configuration to replace; empty for none.
fn old_conf_name(environment: &Environment<'_>) -> Result<String, SettingsError> {
    match environment.text("CNI_OLD_CONF_NAME", DEFAULT_CONF_NAME) {
        name if name.is_empty() => Ok(name),
        name => file_name("CNI_OLD_CONF_NAME", name),
    }
}

/// Checks that a name from a variable cannot lead outside of its directory.
fn file_name(name: &str, found: String) -> Result<String, SettingsError> {
    if found.is_empty() || found == "." || found == ".." || found.contains('/') {
        return Err(SettingsError::Value {
            name: name.to_owned(),
            found,
            wanted: "the name of a file, like 10-calico.conflist",
        });
    }
    Ok(found)
}

fn extra_plugins(environment: &Environment<'_>) -> Result<ExtraPlugins, SettingsError> {
    let skipped = environment.text("SKIP_CNI_BINARIES", "");
    let skipped = skipped.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned);
    match environment.text("CNI_INSTALL_PLUGINS", "all").to_ascii_lowercase().as_str() {
        "all" | "" => Ok(ExtraPlugins::AllBut(skipped.collect())),
        "calico-only" | "calicoonly" => Ok(ExtraPlugins::None),
        found => Err(SettingsError::Value {
            name: "CNI_INSTALL_PLUGINS".to_owned(),
            found: found.to_owned(),
            wanted: "`all` or `calico-only`",
        }),
    }
}

#[cfg(test)]
mod tests;
