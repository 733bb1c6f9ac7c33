//! The agent's settings.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use libcalico::api::GoDuration;
use libcalico::failure::Failure;
use libcalico::variables::Variables;
use node_process::process::{Variable, variable};

use super::log_compression;
use super::refresh_schedule::RefreshPace;
use installation::settings::token_node;
use installation::token::{DEFAULT_ACCOUNT, DEFAULT_LIFETIME, MIN_LIFETIME};

/// Default address of the probes and metrics. It is reachable only from this node.
pub const DEFAULT_LISTEN: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9097);

/// Default interval between two tests of the plugins' token, which may become invalid early.
const DEFAULT_CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// The same for a token that ends with its Node. The API server remembers for 10 s that a token is
/// valid, so a test in the first 10 s after the end may leave it to the next test. A new token must
/// be there within 30 s.
const DEFAULT_CHECK_INTERVAL_OF_BOUND: Duration = Duration::from_secs(15);

/// The agent's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentSettings {
    /// `CALICO_MANAGE_CNI`: whether this agent refreshes the plugins' token (INST-50).
    pub manages_token: bool,
    /// `CALICO_CNI_SERVICE_ACCOUNT`: the service account of the plugins.
    pub account: String,
    /// `KUBERNETES_NODE_NAME` if `CNI_TOKEN_BOUND_TO_NODE` is true: the Node to which tokens are
    /// bound.
    pub node: Option<String>,
    /// `CNI_TOKEN_LIFETIME`: the lifetime to request for a token, at least [`MIN_LIFETIME`].
    pub lifetime: Duration,
    /// `CNI_TOKEN_REFRESH_INTERVAL` and `CNI_TOKEN_TRIAL_INTERVAL`.
    pub pace: RefreshPace,
    /// `CNI_AGENT_LISTEN`: the address of the probes and metrics; `None` for `off`.
    pub listen: Option<SocketAddr>,
    /// `CNI_NODE_CONDITION_INTERVAL`: the interval between two reads of the Node's Ready condition.
    pub node_interval: Option<Duration>,
    /// `CNI_LOG_COMPRESSION_INTERVAL`: the interval between two passes over the rotated log files;
    /// `None` for `off`.
    pub log_interval: Option<Duration>,
    /// `CNI_AGENT_REPAIR`: whether this agent removes dead interfaces.
    pub removes_dead_interfaces: bool,
}

/// The variables, for `--help`.
pub const VARIABLES: [Variable; 9] = [
    variable(
        "CALICO_MANAGE_CNI",
        "true",
        "whether this agent renews the plugins' token",
    ),
    variable(
        "CALICO_CNI_SERVICE_ACCOUNT",
        DEFAULT_ACCOUNT,
        "service account whose token the plugins use",
    ),
    variable(
        "CNI_AGENT_REPAIR",
        "false",
        "whether this agent removes interfaces of ended containers; it needs the rights of the \
         component remove-dead-interfaces",
    ),
    variable(
        "CNI_TOKEN_LIFETIME",
        "24h",
        "lifetime of a token, at least 10m; the API server may grant a shorter one",
    ),
    variable(
        "CNI_TOKEN_REFRESH_INTERVAL",
        "",
        "interval between two tokens [default: a quarter of the remaining lifetime]",
    ),
    variable(
        "CNI_TOKEN_TRIAL_INTERVAL",
        "30s",
        "interval between two tests of the plugins' token; 15s by default with \
         CNI_TOKEN_BOUND_TO_NODE",
    ),
    variable(
        "CNI_AGENT_LISTEN",
        "127.0.0.1:9097",
        "address of /readiness, /liveness and /metrics, or off; set 0.0.0.0:9097 for requests from \
         other machines",
    ),
    variable(
        "CNI_NODE_CONDITION_INTERVAL",
        "",
        "interval between two reads of the Node's Ready condition, such as 60s; the agent is not \
         ready while kubelet reports that the node has no network",
    ),
    variable(
        "CNI_LOG_COMPRESSION_INTERVAL",
        "5m",
        "interval between two passes over the plugins' rotated log files, each of which compresses \
         at most one, or off",
    ),
];

impl AgentSettings {
    /// Reads the settings from the environment. An empty or blank variable counts as unset.
    ///
    /// # Errors
    /// Returns an error about one invalid variable. An invalid `CNI_TOKEN_REFRESH_INTERVAL` is only
    /// logged.
    pub fn from_environment(variables: Variables<'_>) -> Result<Self, Failure> {
        let duration = |name| variables.parsed(name, parse_duration);
        // With an invalid value the interval is derived from the token's lifetime, as in upstream
        // (INST-44).
        let refresh_interval = duration("CNI_TOKEN_REFRESH_INTERVAL").unwrap_or_else(|error| {
            tracing::warn!(
                %error, "deriving the interval of the token's renewal from its lifetime",
            );
            None
        });
        // An invalid value or a missing name is an error of the installation's settings, which are
        // read before.
        let node = token_node(&variables).unwrap_or_default();
        let default = if node.is_some() {
            DEFAULT_CHECK_INTERVAL_OF_BOUND
        } else {
            DEFAULT_CHECK_INTERVAL
        };
        let check_interval = duration("CNI_TOKEN_TRIAL_INTERVAL")?.unwrap_or(default);
        Ok(AgentSettings {
            manages_token: !variables
                .trimmed("CALICO_MANAGE_CNI")
                .is_some_and(|value| value.eq_ignore_ascii_case("false")),
            account: variables
                .trimmed("CALICO_CNI_SERVICE_ACCOUNT")
                .unwrap_or_else(|| DEFAULT_ACCOUNT.into()),
            node,
            lifetime: duration("CNI_TOKEN_LIFETIME")?
                .unwrap_or(DEFAULT_LIFETIME)
                .max(MIN_LIFETIME),
            pace: RefreshPace {
                refresh_interval,
                check_interval,
            },
            listen: variables
                .parsed("CNI_AGENT_LISTEN", parse_listen)?
                .unwrap_or(Some(DEFAULT_LISTEN)),
            node_interval: duration("CNI_NODE_CONDITION_INTERVAL")?,
            log_interval: variables
                .parsed("CNI_LOG_COMPRESSION_INTERVAL", parse_interval)?
                .unwrap_or(Some(log_compression::DEFAULT_INTERVAL)),
            removes_dead_interfaces: variables
                .parsed("CNI_AGENT_REPAIR", parse_switch)?
                .unwrap_or(false),
        })
    }
}

fn invalid(name: &str, value: &str, wanted: &str) -> Failure {
    Failure::new(format_args!("{name}={value} is invalid")).way_out(format!("set {wanted}"))
}

fn parse_duration(name: &'static str, value: &str) -> Result<Duration, Failure> {
    let wanted = "a duration above 0, such as 90s, 5m or 1h30m";
    let duration = value.parse().map(GoDuration::duration).ok();
    let duration = duration.filter(|duration| !duration.is_zero());
    duration.ok_or_else(|| invalid(name, value, wanted))
}

/// Parses an interval, or `off`.
fn parse_interval(name: &'static str, value: &str) -> Result<Option<Duration>, Failure> {
    match value {
        "off" => Ok(None),
        _ => parse_duration(name, value).map(Some),
    }
}

/// Parses the address of the listener, or `off`.
fn parse_listen(name: &'static str, value: &str) -> Result<Option<SocketAddr>, Failure> {
    if value == "off" {
        return Ok(None);
    }
    // Port 0 selects a random port, which no probe finds.
    let address = value.parse::<SocketAddr>().ok();
    let address = address.filter(|address| address.port() != 0);
    let wanted = "ADDRESS:PORT, such as 127.0.0.1:9097, 0.0.0.0:9097 or [::]:9097, or off";
    address
        .ok_or_else(|| invalid(name, value, wanted))
        .map(Some)
}

fn parse_switch(name: &'static str, value: &str) -> Result<bool, Failure> {
    value
        .parse()
        .map_err(|_| invalid(name, value, "true or false"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(environment: &[(&str, &str)]) -> Result<AgentSettings, Failure> {
        let lookup = |name: &str| {
            environment
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        };
        AgentSettings::from_environment(Variables::new(&lookup))
    }

    #[test]
    fn empty_agent_settings_match_upstream_with_port_9097() {
        let expected = AgentSettings {
            manages_token: true,
            account: "calico-cni-plugin".into(),
            node: None,
            lifetime: Duration::from_secs(86_400),
            pace: RefreshPace {
                refresh_interval: None,
                check_interval: Duration::from_secs(30),
            },
            listen: Some(DEFAULT_LISTEN),
            node_interval: None,
            log_interval: Some(Duration::from_secs(300)),
            removes_dead_interfaces: false,
        };
        assert_eq!(settings(&[]).unwrap(), expected);
        let empty = VARIABLES.map(|known| (known.name, " "));
        assert_eq!(settings(&empty).unwrap(), expected);
        assert_eq!(DEFAULT_LISTEN.to_string(), "127.0.0.1:9097");
    }

    /// Two intervals may pass, of which the first ends in the time for which the API server still
    /// accepts the token.
    #[test]
    fn token_bound_to_a_node_is_tested_often_enough_for_a_new_one_within_thirty_seconds() {
        const ACCEPTED: Duration = Duration::from_secs(10);
        let bound = [
            ("CNI_TOKEN_BOUND_TO_NODE", "true"),
            ("KUBERNETES_NODE_NAME", "n1"),
        ];
        assert!(ACCEPTED + settings(&bound).unwrap().pace.check_interval < Duration::from_secs(30));
    }

    #[test]
    fn every_agent_setting_can_be_set() {
        let value_of = settings(&[
            ("CALICO_MANAGE_CNI", "False"),
            ("CALICO_CNI_SERVICE_ACCOUNT", "canal"),
            ("CNI_TOKEN_BOUND_TO_NODE", "true"),
            ("KUBERNETES_NODE_NAME", "n1"),
            ("CNI_TOKEN_LIFETIME", "1m"),
            ("CNI_TOKEN_REFRESH_INTERVAL", "100ms"),
            ("CNI_TOKEN_TRIAL_INTERVAL", "1s"),
            ("CNI_AGENT_LISTEN", "off"),
            ("CNI_NODE_CONDITION_INTERVAL", "1m"),
            ("CNI_LOG_COMPRESSION_INTERVAL", "off"),
            ("CNI_AGENT_REPAIR", "true"),
        ]);
        let expected = AgentSettings {
            manages_token: false,
            account: "canal".into(),
            node: Some("n1".into()),
            // The shortest lifetime that an API server accepts in a request.
            lifetime: Duration::from_secs(600),
            pace: RefreshPace {
                refresh_interval: Some(Duration::from_millis(100)),
                check_interval: Duration::from_secs(1),
            },
            listen: None,
            node_interval: Some(Duration::from_secs(60)),
            log_interval: None,
            removes_dead_interfaces: true,
        };
        assert_eq!(value_of.unwrap(), expected);
    }

    #[test]
    fn invalid_agent_settings_are_rejected_except_the_refresh_interval() {
        for (name, value) in [
            ("CNI_AGENT_LISTEN", "9097"),
            ("CNI_AGENT_LISTEN", "node1:9097"),
            ("CNI_AGENT_LISTEN", "127.0.0.1:0"),
            ("CNI_TOKEN_LIFETIME", "a day"),
            ("CNI_TOKEN_TRIAL_INTERVAL", "0"),
            ("CNI_NODE_CONDITION_INTERVAL", "true"),
            ("CNI_LOG_COMPRESSION_INTERVAL", "never"),
            ("CNI_AGENT_REPAIR", "yes"),
        ] {
            let error = settings(&[(name, value)]).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("{name}={value} is invalid; set ")),
                "{error}"
            );
        }
        assert_eq!(
            settings(&[("CNI_TOKEN_REFRESH_INTERVAL", "often")])
                .unwrap()
                .pace
                .refresh_interval,
            None
        );
    }
}
