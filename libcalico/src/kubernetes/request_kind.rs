//! [`request_kind`]: the verb and the kind of a request to an API server, as metrics count them.

/// The verb of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ApiVerb {
    /// A read of an object, or of a path that belongs to no object.
    Get,
    /// A read of a collection.
    List,
    /// A watch of a collection.
    Watch,
    /// A POST.
    Create,
    /// A PUT.
    Update,
    /// A PATCH.
    Patch,
    /// A DELETE of an object or of a collection.
    Delete,
}

impl ApiVerb {
    /// Returns the verb as metrics contain it.
    pub fn as_str(self) -> &'static str {
        match self {
            ApiVerb::Get => "get",
            ApiVerb::List => "list",
            ApiVerb::Watch => "watch",
            ApiVerb::Create => "create",
            ApiVerb::Update => "update",
            ApiVerb::Patch => "patch",
            ApiVerb::Delete => "delete",
        }
    }
}

/// The kind of a request that no entry of [`KINDS`] names.
const OTHER: &str = "other";

/// The plurals of the kinds that have names in metrics, each with the name of its status. The list
/// is closed: a path may contain a name that a tenant chose, and such a name must not become the
/// value of a label.
const KINDS: [(&str, &str); 32] = [
    ("apiservices", "apiservices/status"),
    ("blockaffinities", "blockaffinities/status"),
    ("clusterinformations", "clusterinformations/status"),
    ("configmaps", "configmaps/status"),
    (
        "customresourcedefinitions",
        "customresourcedefinitions/status",
    ),
    ("daemonsets", "daemonsets/status"),
    ("datastoremigrations", "datastoremigrations/status"),
    ("deployments", "deployments/status"),
    ("events", "events/status"),
    ("globalnetworkpolicies", "globalnetworkpolicies/status"),
    ("hostendpoints", "hostendpoints/status"),
    ("ipamblocks", "ipamblocks/status"),
    ("ipamconfigs", "ipamconfigs/status"),
    ("ipamconfigurations", "ipamconfigurations/status"),
    ("ipamhandles", "ipamhandles/status"),
    ("ippools", "ippools/status"),
    ("ipreservations", "ipreservations/status"),
    (
        "kubecontrollersconfigurations",
        "kubecontrollersconfigurations/status",
    ),
    ("leases", "leases/status"),
    ("namespaces", "namespaces/status"),
    ("networkpolicies", "networkpolicies/status"),
    ("nodes", "nodes/status"),
    ("pods", "pods/status"),
    (
        "selfsubjectaccessreviews",
        "selfsubjectaccessreviews/status",
    ),
    ("selfsubjectrulesreviews", "selfsubjectrulesreviews/status"),
    ("serviceaccounts", "serviceaccounts/status"),
    ("services", "services/status"),
    (
        "stagedglobalnetworkpolicies",
        "stagedglobalnetworkpolicies/status",
    ),
    ("stagednetworkpolicies", "stagednetworkpolicies/status"),
    ("tiers", "tiers/status"),
    ("virtualmachineinstances", "virtualmachineinstances/status"),
    ("virtualmachines", "virtualmachines/status"),
];

/// Returns the verb and the kind of a request. The kind is the plural, with `/status` for the
/// status of an object, or `other` for a path or a kind that the closed list does not contain.
/// `path` is relative to the URL of the server.
pub fn request_kind(method: &str, path: &str, query: &str) -> (ApiVerb, &'static str) {
    let resource = ResourcePath::parse(path);
    let verb = match method {
        "POST" => ApiVerb::Create,
        "PUT" => ApiVerb::Update,
        "PATCH" => ApiVerb::Patch,
        "DELETE" => ApiVerb::Delete,
        _ if is_watch(query) => ApiVerb::Watch,
        _ if resource
            .as_ref()
            .is_some_and(|resource| resource.name.is_none()) =>
        {
            ApiVerb::List
        }
        _ => ApiVerb::Get,
    };
    (verb, resource.map_or(OTHER, |resource| resource.kind()))
}

/// Returns true if the query of a request asks for a watch.
pub fn is_watch(query: &str) -> bool {
    query
        .split('&')
        .any(|parameter| matches!(parameter, "watch=true" | "watch=1"))
}

/// The parts of a path that names a collection, an object or a part of an object.
struct ResourcePath<'a> {
    plural: &'a str,
    name: Option<&'a str>,
    subresource: Option<&'a str>,
}

impl<'a> ResourcePath<'a> {
    /// Returns `None` for a path of another kind, such as `/healthz`, or that of a group.
    fn parse(path: &'a str) -> Option<Self> {
        let mut segments = path.split('/').filter(|segment| !segment.is_empty());
        // The groups are `/api/VERSION` and `/apis/GROUP/VERSION`.
        let before_version = match segments.next()? {
            "api" => 0,
            "apis" => 1,
            _ => return None,
        };
        segments.nth(before_version)?;
        let rest: Vec<&str> = segments.collect();
        let part = |index: usize| rest.get(index).copied();
        match (part(0)?, part(2)) {
            ("namespaces", Some(plural)) if !matches!(plural, "status" | "finalize") => {
                Some(ResourcePath {
                    plural,
                    name: part(3),
                    subresource: part(4),
                })
            }
            (plural, subresource) => Some(ResourcePath {
                plural,
                name: part(1),
                subresource,
            }),
        }
    }

    fn kind(&self) -> &'static str {
        let known = KINDS.iter().find(|(plural, _)| *plural == self.plural);
        match (known, self.subresource) {
            (Some(&(plural, _)), None) => plural,
            (Some(&(_, status)), Some("status")) => status,
            _ => OTHER,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_counted_by_its_verb_and_its_kind() {
        for (method, path, query, expected) in [
            ("GET", "/api/v1/pods", "", "list pods"),
            ("GET", "/api/v1/pods", "limit=500&watch=true", "watch pods"),
            (
                "GET",
                "/api/v1/namespaces/shop/pods",
                "watch=1&resourceVersion=3",
                "watch pods",
            ),
            (
                "GET",
                "/api/v1/namespaces/shop/pods",
                "labelSelector=watch%3Dtrue",
                "list pods",
            ),
            ("GET", "/api/v1/namespaces/shop/pods/web", "", "get pods"),
            (
                "PATCH",
                "/api/v1/namespaces/shop/pods/web/status",
                "",
                "patch pods/status",
            ),
            ("GET", "/api/v1/namespaces", "", "list namespaces"),
            ("GET", "/api/v1/namespaces/shop", "", "get namespaces"),
            (
                "PUT",
                "/api/v1/namespaces/shop/status",
                "",
                "update namespaces/status",
            ),
            (
                "PUT",
                "/api/v1/namespaces/shop/finalize",
                "",
                "update other",
            ),
            (
                "POST",
                "/api/v1/namespaces/shop/events",
                "",
                "create events",
            ),
            (
                "POST",
                "/api/v1/namespaces/shop/serviceaccounts/web/token",
                "",
                "create other",
            ),
            (
                "DELETE",
                "/apis/crd.projectcalico.org/v1/ipamblocks/10-0-0-0-26",
                "",
                "delete ipamblocks",
            ),
            (
                "DELETE",
                "/apis/projectcalico.org/v3/hostendpoints",
                "",
                "delete hostendpoints",
            ),
            (
                "PUT",
                "/apis/projectcalico.org/v3/ippools/one/status",
                "",
                "update ippools/status",
            ),
            (
                "GET",
                "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/l",
                "",
                "get leases",
            ),
            (
                "POST",
                "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
                "",
                "create selfsubjectaccessreviews",
            ),
        ] {
            let (verb, kind) = request_kind(method, path, query);
            assert_eq!(
                format!("{} {kind}", verb.as_str()),
                expected,
                "{method} {path}?{query}"
            );
        }
    }

    #[test]
    fn path_without_a_known_kind_is_counted_as_other() {
        for path in [
            "/healthz",
            "/",
            "",
            "/api",
            "/apis",
            "/api/v1",
            "/apis/apps/v1",
            "/apis/apps/v1/statefulsets/web",
        ] {
            assert_eq!(
                request_kind("GET", path, ""),
                (ApiVerb::Get, OTHER),
                "{path}"
            );
        }
        assert_eq!(
            request_kind("GET", "/apis/apps/v1/statefulsets", ""),
            (ApiVerb::List, OTHER)
        );
    }

    /// A tenant chooses names of namespaces, pods and Services. Shows SEC-31.
    #[test]
    fn names_reach_no_label() {
        let hostile = [
            "pods",
            "status",
            "watch=true",
            "namespaces",
            "finalize",
            "a%2Fb",
            "..",
            "x y",
            "\u{1b}[2J",
            "ä",
        ];
        let known = |kind: &str| {
            kind == OTHER
                || KINDS
                    .iter()
                    .any(|(plural, status)| [*plural, *status].contains(&kind))
        };
        for name in hostile {
            for path in [
                format!("/api/v1/namespaces/{name}"),
                format!("/api/v1/namespaces/{name}/pods"),
                format!("/api/v1/namespaces/{name}/{name}"),
                format!("/api/v1/namespaces/{name}/{name}/{name}/{name}"),
                format!("/api/v1/namespaces/shop/pods/{name}"),
                format!("/api/v1/namespaces/shop/pods/{name}/status"),
                format!("/api/v1/{name}"),
                format!("/apis/{name}/{name}/{name}/{name}/{name}"),
                format!("/{name}/{name}"),
            ] {
                for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", name] {
                    let (_, kind) = request_kind(method, &path, name);
                    assert!(known(kind), "{method} {path} gives {kind}");
                }
            }
            assert_eq!(
                request_kind("GET", &format!("/api/v1/namespaces/{name}/pods"), "").1,
                "pods"
            );
            assert_eq!(
                request_kind(
                    "GET",
                    &format!("/api/v1/namespaces/shop/services/{name}"),
                    ""
                )
                .1,
                "services"
            );
        }
    }

    #[test]
    fn kinds_are_sorted_and_each_has_its_status() {
        assert!(KINDS.is_sorted());
        for (plural, status) in KINDS {
            assert_eq!(status, format!("{plural}/status"));
        }
    }
}
