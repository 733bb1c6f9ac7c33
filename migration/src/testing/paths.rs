//! [`RequestPath`]: the parts of a URL of the API server. [`StoreKey`]: the identity of a stored
//! object.

use std::collections::BTreeMap;

use libcalico::kubernetes::{Location, escaped};

/// The identity of an object. An object of a custom resource has one identity in all versions of
/// its definition.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StoreKey {
    pub(crate) group: String,
    pub(crate) plural: String,
    /// Empty for cluster-scoped objects.
    pub(crate) namespace: String,
    /// As in a URL, that is, escaped.
    pub(crate) name: String,
}

impl StoreKey {
    pub(crate) fn of(at: &Location) -> Self {
        StoreKey {
            group: at
                .resource
                .api_version
                .rsplit_once('/')
                .map_or("", |(group, _)| group)
                .to_owned(),
            plural: at.resource.plural.to_owned(),
            namespace: at.namespace.clone().unwrap_or_default(),
            name: escaped(&at.name),
        }
    }
}

/// The parts of the URL of an object or a collection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct RequestPath {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) plural: String,
    pub(crate) namespace: String,
    /// Empty for a collection.
    pub(crate) name: String,
    /// `status`, or empty.
    pub(crate) subresource: String,
    pub(crate) query: BTreeMap<String, String>,
}

impl RequestPath {
    /// Returns `None` for a path of the discovery, such as `/apis`.
    pub(crate) fn parse(uri: &hyper::Uri) -> Option<Self> {
        let words: Vec<&str> = uri.path().trim_matches('/').split('/').collect();
        let (group, version, rest) = match words.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            rest => ("", rest),
        };
        let mut rest = rest.iter().map(|word| (*word).to_owned());
        Some(RequestPath {
            group: group.into(),
            version: version.into(),
            namespace: namespace.into(),
            plural: rest.next()?,
            name: rest.next().unwrap_or_default(),
            subresource: rest.next().unwrap_or_default(),
            query: uri.query().map(parameters).unwrap_or_default(),
        })
    }

    pub(crate) fn key(&self) -> StoreKey {
        StoreKey {
            group: self.group.clone(),
            plural: self.plural.clone(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }

    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    pub(crate) fn is_dry_run(&self) -> bool {
        self.query.get("dryRun").is_some_and(|value| value == "All")
    }
}

/// Returns the parameters of a query, as they are escaped.
fn parameters(query: &str) -> BTreeMap<String, String> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_objects_collections_and_discovery_are_told_apart() {
        let path = |text: &str| RequestPath::parse(&text.parse().unwrap());
        let policy =
            path("/apis/projectcalico.org/v3/namespaces/ns/networkpolicies/a/status?dryRun=All")
                .unwrap();
        assert_eq!(
            (&*policy.namespace, &*policy.plural, &*policy.name),
            ("ns", "networkpolicies", "a")
        );
        assert_eq!(
            (policy.api_version().as_str(), &*policy.subresource),
            ("projectcalico.org/v3", "status")
        );
        assert!(policy.is_dry_run());
        let pools = path("/apis/crd.projectcalico.org/v1/ippools?limit=2&continue=").unwrap();
        assert_eq!(
            (&*pools.plural, &*pools.name, pools.query["limit"].as_str()),
            ("ippools", "", "2")
        );
        let namespace = path("/api/v1/namespaces/ns").unwrap();
        assert_eq!(
            (&*namespace.plural, &*namespace.name, &*namespace.namespace),
            ("namespaces", "ns", "")
        );
        for text in [
            "/apis",
            "/apis/projectcalico.org",
            "/apis/projectcalico.org/v3",
            "/version",
        ] {
            assert_eq!(path(text), None, "{text}");
        }
    }
}
