//! [`Settings`]: the environment variables of an installation, and [`PoolRequest`]: the pools that
//! they request.
//!
//! Empty variables follow upstream's rules, because manifests and scripts rely on them (INST-8),
//! except an empty number or Boolean for a placeholder: it counts as unset, while in upstream it
//! breaks the configuration (INST-10).

pub mod variables;

use std::path::PathBuf;
use std::time::Duration;

use libcalico::api::IpPoolSpec;
use libcalico::net::{Cidr, IpVersion};
use libcalico::variables::{InvalidVariable, Variables};

use crate::environment::{mode, seconds};
use crate::template::Values;
use crate::token::TokenRequest;

/// The settings of an installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The source of the configuration's template.
    pub template: Template,
    /// The values of the template's placeholders.
    pub values: Values,
    /// The file name of the configuration.
    pub conf_name: String,
    /// The file name of a configuration that this one replaces; empty for none.
    pub old_conf_name: String,
    /// The mode of the configuration.
    pub conf_mode: u32,
    /// The configuration directory on the node.
    pub net_dir: String,
    /// The plugin directory on the node.
    pub bin_dir: String,
    /// The configuration directory of an earlier installation, from which that installation's files
    /// are to be removed.
    pub former_net_dir: Option<String>,
    /// The plugin directory of an earlier installation, from which that installation's files are to
    /// be removed.
    pub former_bin_dir: Option<String>,
    /// The mount point of the TLS files for etcd.
    pub tls_assets: PathBuf,
    /// The plugins to install beside Calico's.
    pub extra_plugins: ExtraPlugins,
    /// The treatment of existing programs.
    pub update: Update,
    /// Whether to create `calico-ipam` as a hard link to `calico` instead of a copy.
    pub link_ipam: bool,
    /// Maximum time for trying out the new configuration, and in a pod for retrying requests to the
    /// API server and etcd. Zero disables both.
    pub trial_time: Duration,
    /// Whether to keep running as the agent (INST-37).
    pub stays_as_agent: bool,
    /// The service account of the plugins.
    pub service_account: String,
    /// The Node to which the plugins' token is bound.
    pub token_node: Option<String>,
    /// The name of this node; `None` if `KUBERNETES_NODE_NAME` is empty or not set.
    pub node_name: Option<String>,
    /// The host name of this machine in lower case.
    pub host_name: String,
    /// True to create the settings of IPAM with `strictAffinity` if there are none.
    pub strict_affinity: bool,
    /// The first pool of each family, if requested.
    pub pools: Vec<PoolRequest>,
}

/// The source of the configuration's template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Template {
    /// The built-in template.
    BuiltIn,
    /// The text in `CNI_NETWORK_CONFIG`.
    Text(String),
    /// The file in the container that `CNI_NETWORK_CONFIG_FILE` names.
    File(PathBuf),
}

/// The plugins to install beside Calico's. Upstream's images up to v3.32 contain several (INST-38).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExtraPlugins {
    /// Install no plugin beside Calico's.
    None,
    /// Install all plugins in the image except these.
    AllBut(Vec<String>),
}

/// The treatment of programs that exist already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    /// All existing programs are kept.
    Never,
    /// Calico's programs are replaced. Other plugins are replaced only if this installer installed
    /// them (INST-40).
    Ours,
    /// All existing programs are replaced.
    Always,
}

impl Settings {
    /// Reads the settings. `host` is the name of this machine.
    pub fn from_environment(
        environment: Variables<'_>,
        host: &str,
    ) -> Result<Settings, InvalidVariable> {
        let net_dir = environment.text("CNI_NET_DIR", crate::layout::NET_DIR);
        let host_name = host.to_lowercase();
        let conf_name = file_name(
            "CNI_CONF_NAME",
            environment.text("CNI_CONF_NAME", DEFAULT_CONF_NAME),
        )?;
        Ok(Settings {
            template: template(&environment),
            values: Values::new(&environment, &host_name, &net_dir),
            host_name,
            old_conf_name: old_conf_name(&environment)?,
            conf_name,
            conf_mode: mode(&environment, "TEST_FILE_PERMISSION", 0o600)?,
            net_dir,
            bin_dir: environment
                .non_empty("CNI_BIN_DIR")
                .unwrap_or_else(|| crate::layout::BIN_DIR.to_owned()),
            former_net_dir: environment.non_empty("CNI_FORMER_NET_DIR"),
            former_bin_dir: environment.non_empty("CNI_FORMER_BIN_DIR"),
            tls_assets: environment.text("TLS_ASSETS_DIR", "/calico-secrets").into(),
            extra_plugins: extra_plugins(&environment)?,
            update: match environment.boolean("UPDATE_CNI_BINARIES")? {
                None => Update::Ours,
                Some(true) => Update::Always,
                Some(false) => Update::Never,
            },
            link_ipam: environment.boolean("CNI_LINK_IPAM")?.unwrap_or(true),
            trial_time: seconds(&environment, "CNI_TRY_SECONDS", DEFAULT_TRY)?,
            stays_as_agent: environment.boolean("SLEEP")?.unwrap_or(true),
            service_account: environment
                .non_empty("CALICO_CNI_SERVICE_ACCOUNT")
                .unwrap_or("calico-cni-plugin".into()),
            token_node: token_node(&environment)?,
            node_name: environment.non_empty("KUBERNETES_NODE_NAME"),
            strict_affinity: environment
                .boolean("CALICO_IPAM_STRICT_AFFINITY")?
                .unwrap_or(false),
            pools: PoolRequest::from_environment(&environment)?,
        })
    }

    /// Returns the request for the plugins' token.
    pub fn token_request(&self) -> TokenRequest {
        TokenRequest {
            node: self.token_node.clone(),
            ..TokenRequest::for_account(&self.service_account)
        }
    }
}

const DEFAULT_CONF_NAME: &str = "10-calico.conflist";
const DEFAULT_TRY: Duration = Duration::from_secs(30);

/// Returns the template. As in upstream, the file wins over the text.
fn template(environment: &Variables<'_>) -> Template {
    match (
        environment.non_empty("CNI_NETWORK_CONFIG_FILE"),
        environment.non_empty("CNI_NETWORK_CONFIG"),
    ) {
        (Some(file), _) => Template::File(file.into()),
        (None, Some(text)) => Template::Text(text),
        (None, None) => Template::BuiltIn,
    }
}

fn old_conf_name(environment: &Variables<'_>) -> Result<String, InvalidVariable> {
    match environment.text("CNI_OLD_CONF_NAME", DEFAULT_CONF_NAME) {
        name if name.is_empty() => Ok(name),
        name => file_name("CNI_OLD_CONF_NAME", name),
    }
}

/// Returns the file name `found` in the variable `name`, or an error if it could lead outside of
/// its directory.
fn file_name(name: &str, found: String) -> Result<String, InvalidVariable> {
    if found.is_empty() || found == "." || found == ".." || found.contains('/') {
        let problem = "not the name of a file, like 10-calico.conflist";
        return Err(InvalidVariable::new(name, found, problem));
    }
    Ok(found)
}

/// Returns the Node to which tokens are bound; `None` if `CNI_TOKEN_BOUND_TO_NODE` is not true.
pub fn token_node(environment: &Variables<'_>) -> Result<Option<String>, InvalidVariable> {
    const NAME: &str = "KUBERNETES_NODE_NAME";
    if environment.boolean("CNI_TOKEN_BOUND_TO_NODE")? != Some(true) {
        return Ok(None);
    }
    let problem = "not the name of the Node, to which CNI_TOKEN_BOUND_TO_NODE binds the token";
    let missing = || InvalidVariable::new(NAME, "", problem);
    environment.non_empty(NAME).ok_or_else(missing).map(Some)
}

fn extra_plugins(environment: &Variables<'_>) -> Result<ExtraPlugins, InvalidVariable> {
    let skipped = environment.text("SKIP_CNI_BINARIES", "");
    let skipped = skipped
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .map(str::to_owned);
    match environment
        .text("CNI_INSTALL_PLUGINS", "all")
        .to_ascii_lowercase()
        .as_str()
    {
        "all" | "" => Ok(ExtraPlugins::AllBut(skipped.collect())),
        "calico-only" | "calicoonly" => Ok(ExtraPlugins::None),
        found => Err(InvalidVariable::new(
            "CNI_INSTALL_PLUGINS",
            found,
            "not `all` or `calico-only`",
        )),
    }
}

#[cfg(test)]
mod tests;

/// The request for the first pool of a family.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolRequest {
    /// The name of the pool, which is the same as in calico-node.
    pub name: &'static str,
    /// The specification of the pool.
    pub spec: IpPoolSpec,
}

// The specification contains no floating-point number, so each value equals itself.
impl Eq for PoolRequest {}

impl PoolRequest {
    /// Returns the requested pools, by the variables of calico-node (INST-62).
    fn from_environment(environment: &Variables<'_>) -> Result<Vec<PoolRequest>, InvalidVariable> {
        if environment
            .non_empty("NO_DEFAULT_POOLS")
            .is_some_and(|said| said == "true")
        {
            return Ok(Vec::new());
        }
        let requests = [IpVersion::V4, IpVersion::V6]
            .map(|version| PoolRequest::of_family(version, environment));
        requests.into_iter().filter_map(Result::transpose).collect()
    }

    /// Returns the pool of a family, or `None` if its range is empty, not set or `none`.
    fn of_family(
        version: IpVersion,
        environment: &Variables<'_>,
    ) -> Result<Option<PoolRequest>, InvalidVariable> {
        let (name, prefix, problem) = match version {
            IpVersion::V4 => (
                "default-ipv4-ippool",
                "CALICO_IPV4POOL",
                "not an IPv4 range like 10.65.0.0/16, or none",
            ),
            IpVersion::V6 => (
                "default-ipv6-ippool",
                "CALICO_IPV6POOL",
                "not an IPv6 range like fd65::/64, or none",
            ),
        };
        let variable = |property: &str| format!("{prefix}_{property}");
        let (cidr, block_size) = (variable("CIDR"), variable("BLOCK_SIZE"));
        let Some(found) = environment.non_empty(&cidr).filter(|range| range != "none") else {
            return Ok(None);
        };
        let range = found
            .parse::<Cidr>()
            .ok()
            .filter(|range| range.version() == version);
        let range = range.ok_or_else(|| InvalidVariable::new(cidr, found, problem))?;
        let block_size = environment.non_empty(&block_size).map(|found| {
            let problem = "not a prefix length, 20 to 32 for IPv4, 116 to 128 for IPv6";
            found
                .parse()
                .map_err(|_| InvalidVariable::new(block_size, found, problem))
        });
        let spec = IpPoolSpec {
            cidr: range.to_string(),
            block_size: block_size.transpose()?,
            ipip_mode: match version {
                IpVersion::V4 => encapsulation(environment, variable("IPIP"))?,
                IpVersion::V6 => String::new(),
            },
            vxlan_mode: encapsulation(environment, variable("VXLAN"))?,
            nat_outgoing: environment
                .boolean(&variable("NAT_OUTGOING"))?
                .unwrap_or(version == IpVersion::V4),
            node_selector: environment
                .non_empty(&variable("NODE_SELECTOR"))
                .unwrap_or_default(),
            ..IpPoolSpec::default()
        };
        Ok(Some(PoolRequest { name, spec }))
    }
}

/// Returns the mode of an encapsulation, by default Never: the installer does not install the
/// programs that encapsulate packets.
fn encapsulation(environment: &Variables<'_>, name: String) -> Result<String, InvalidVariable> {
    let found = environment.text(&name, "");
    let mode = match found.to_ascii_lowercase().as_str() {
        "" | "never" | "off" => "Never",
        "always" => "Always",
        "crosssubnet" | "cross-subnet" => "CrossSubnet",
        _ => {
            return Err(InvalidVariable::new(
                name,
                found,
                "not Never, Always or CrossSubnet",
            ));
        }
    };
    Ok(mode.to_owned())
}
