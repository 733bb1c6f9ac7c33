//! [`Settings`]: what the environment says about an installation (INST-8).
//!
//! The rules for variables that are set to nothing are upstream's, as manifests and scripts rely on them: a text stays empty,
//! a truth value ends the run. A number ends the run only upstream, which then does not say which one it was (INST-10).

mod pools;
pub(crate) mod read;
pub mod variables;

use std::path::PathBuf;
use std::time::Duration;

pub use self::pools::PoolRequest;
use self::read::Environment;
use crate::template::Values;

/// Why the environment makes no sense. Nothing has been touched yet.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SettingsError {
    /// A truth value that is none.
    #[error("{name}: `{found}` is neither true nor false; leave it out for its default")]
    Truth {
        /// The variable.
        name: &'static str,
        /// Its value.
        found: String,
    },
    /// Another value that cannot be.
    #[error("{name}: `{found}` is not {wanted}")]
    Value {
        /// The variable.
        name: &'static str,
        /// Its value.
        found: String,
        /// What it should be.
        wanted: &'static str,
    },
}

/// What to install and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Where the template of the configuration is.
    pub template: Template,
    /// What is put into the template.
    pub values: Values,
    /// Name of the configuration in its directory.
    pub conf_name: String,
    /// A configuration that this one takes the place of; the same name for none.
    pub old_conf_name: String,
    /// Mode of the configuration.
    pub conf_mode: u32,
    /// The configuration directory on the node.
    pub net_dir: String,
    /// Where the files for TLS with etcd are mounted.
    pub tls_assets: PathBuf,
    /// Which plugins beside our own are installed.
    pub extra_plugins: ExtraPlugins,
    /// What becomes of files that are there already.
    pub update: Update,
    /// Whether `calico-ipam` is a second name of the file `calico`, not a copy.
    pub link_ipam: bool,
    /// How long the new configuration is tried before it is put in place all the same; zero: not at all.
    pub try_for: Duration,
    /// Whether to stay, and keep what was installed fresh (INST-37).
    pub stay: bool,
    /// The service account whose token the plugins use.
    pub service_account: String,
    /// The name of this node; none where nothing says it.
    pub node_name: Option<String>,
    /// The name of this machine, which stands in the template for the node's where nothing says that.
    pub host_name: String,
    /// The first pool of each family, where one is asked for.
    pub pools: Vec<PoolRequest>,
}

/// Where the template of the configuration is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Template {
    /// The one that is built in.
    BuiltIn,
    /// Given.
    Text(String),
    /// In a file of the container.
    File(PathBuf),
}

/// Which plugins beside our own are installed (INST-38).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExtraPlugins {
    /// None.
    None,
    /// All that the image has but these.
    AllBut(Vec<String>),
}

/// What becomes of plugins that are there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    /// All stay.
    Never,
    /// Our own are replaced; of others only those that we installed: a distribution's are newer more often than not
    /// (INST-40).
    Ours,
    /// All are replaced.
    Always,
}

impl Settings {
    /// Reads them. `hostname` is the name of this machine.
    ///
    /// # Errors
    /// A variable has a value that cannot be.
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

/// A file wins over a text, upstream's order.
fn template(environment: &Environment<'_>) -> Template {
    match (environment.some("CNI_NETWORK_CONFIG_FILE"), environment.some("CNI_NETWORK_CONFIG")) {
        (Some(file), _) => Template::File(file.into()),
        (None, Some(text)) => Template::Text(text),
        (None, None) => Template::BuiltIn,
    }
}

/// Empty: there was none.
fn old_conf_name(environment: &Environment<'_>) -> Result<String, SettingsError> {
    match environment.text("CNI_OLD_CONF_NAME", DEFAULT_CONF_NAME) {
        name if name.is_empty() => Ok(name),
        name => file_name("CNI_OLD_CONF_NAME", name),
    }
}

/// What is read from a variable and written to is never outside of its directory.
fn file_name(name: &'static str, found: String) -> Result<String, SettingsError> {
    if found.is_empty() || found == "." || found == ".." || found.contains('/') {
        return Err(SettingsError::Value { name, found, wanted: "the name of a file, like 10-calico.conflist" });
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
            name: "CNI_INSTALL_PLUGINS",
            found: found.to_owned(),
            wanted: "`all` or `calico-only`",
        }),
    }
}

#[cfg(test)]
mod tests;
