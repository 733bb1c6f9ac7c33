//! [`ClientPlace`]: whether a client of the API server may use proxies and run credential plugins.

use std::fmt;

use libcalico::variables::Variables;

/// The kind of process that a client of the API server runs in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ClientPlace {
    /// A plugin, the agent or another program of a node, or a pod in its own cluster. The client
    /// connects directly and runs no credential plugin.
    #[default]
    Node,
    /// The command of a person, whom a credential plugin may ask on the terminal.
    Workstation(ProxyVariables),
    /// A service that runs unattended outside of its cluster.
    OutsideCluster(ProxyVariables),
}

/// The environment variables that name proxies. A URL may contain a password.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ProxyVariables {
    /// `HTTPS_PROXY`, or else `https_proxy`.
    pub(crate) https: String,
    /// `HTTP_PROXY`, or else `http_proxy`.
    pub(crate) http: String,
    /// `NO_PROXY`, or else `no_proxy`.
    pub(crate) excluded: String,
}

impl ClientPlace {
    /// Returns the variables of the proxies, or `None` on a node, which ignores them.
    pub(crate) fn proxy_variables(&self) -> Option<&ProxyVariables> {
        match self {
            ClientPlace::Node => None,
            ClientPlace::Workstation(variables) | ClientPlace::OutsideCluster(variables) => {
                Some(variables)
            }
        }
    }
}

impl ProxyVariables {
    /// Reads the variables. An empty variable counts as unset.
    pub fn read(variables: Variables<'_>) -> Self {
        let first = |names: [&str; 2]| {
            names
                .into_iter()
                .find_map(|name| variables.non_empty(name))
                .unwrap_or_default()
        };
        ProxyVariables {
            https: first(["HTTPS_PROXY", "https_proxy"]),
            http: first(["HTTP_PROXY", "http_proxy"]),
            excluded: first(["NO_PROXY", "no_proxy"]),
        }
    }
}

// Implemented by hand, because the URLs may contain passwords.
impl fmt::Debug for ProxyVariables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyVariables")
            .field("https", &!self.https.is_empty())
            .field("http", &!self.http.is_empty())
            .field("excluded", &self.excluded)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_in_upper_case_take_precedence_unless_empty() {
        let env = |name: &str| match name {
            "HTTPS_PROXY" => Some("http://upper".to_owned()),
            "https_proxy" => Some("http://lower".to_owned()),
            "HTTP_PROXY" => Some(String::new()),
            "http_proxy" => Some("http://me:secret@plain".to_owned()),
            _ => None,
        };
        let variables = ProxyVariables::read(Variables::new(&env));
        assert_eq!(
            (&*variables.https, &*variables.http),
            ("http://upper", "http://me:secret@plain")
        );
        assert!(variables.excluded.is_empty());
        let shown = format!("{:?}", ClientPlace::Workstation(variables));
        assert!(!shown.contains("secret"), "{shown}");
    }

    #[test]
    fn node_has_no_proxy_variables() {
        let variables = ProxyVariables {
            https: "http://p".into(),
            ..ProxyVariables::default()
        };
        assert_eq!(ClientPlace::default().proxy_variables(), None);
        for place in [
            ClientPlace::Workstation(variables.clone()),
            ClientPlace::OutsideCluster(variables.clone()),
        ] {
            assert_eq!(place.proxy_variables(), Some(&variables));
        }
    }
}
