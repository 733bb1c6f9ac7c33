//! [`Resource`] and [`Location`]: a kind and an object, as the API server's URLs name them.
//! [`ApiGroup`]: the API group of Calico's custom resources.

use serde_json::Value;

use crate::names::percent_encoded;

/// A group and version of Calico's custom resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ApiGroup {
    /// `crd.projectcalico.org/v1`: an annotation contains the v3 metadata (DS-56).
    CrdV1,
    /// `projectcalico.org/v3`: objects are stored in their v3 form.
    V3,
}

impl ApiGroup {
    /// Returns the name of the group, without the version.
    pub fn name(self) -> &'static str {
        match self {
            ApiGroup::CrdV1 => "crd.projectcalico.org",
            ApiGroup::V3 => "projectcalico.org",
        }
    }

    /// Returns the group and version, as objects and URLs contain it.
    pub fn api_version(self) -> &'static str {
        match self {
            ApiGroup::CrdV1 => "crd.projectcalico.org/v1",
            ApiGroup::V3 => "projectcalico.org/v3",
        }
    }

    /// Returns the group that `calico_api_group` configures; `None` for an empty value. Any value
    /// except v3 means v1 (DS-22).
    pub fn from_config(text: &str) -> Option<Self> {
        match text {
            "" => None,
            text if text.eq_ignore_ascii_case(ApiGroup::V3.api_version()) => Some(ApiGroup::V3),
            _ => Some(ApiGroup::CrdV1),
        }
    }

    /// Returns the group to use, given the names of all API groups of the server. If both exist,
    /// Calico's aggregated API server provides v3 from the objects stored in v1 (DS-22), and
    /// upstream's programs use v1 too (MIG-73).
    pub fn from_served<'g>(names: impl IntoIterator<Item = &'g str>) -> Self {
        let (mut crd, mut v3) = (false, false);
        for name in names {
            crd |= name == "crd.projectcalico.org";
            v3 |= name == "projectcalico.org";
        }
        if v3 && !crd {
            ApiGroup::V3
        } else {
            ApiGroup::CrdV1
        }
    }
}

/// A kind of object on the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Resource {
    /// The group and version; `v1` alone for the core group.
    pub api_version: &'static str,
    /// The kind, as in an object's `kind`.
    pub kind: &'static str,
    /// The plural, as in URLs.
    pub plural: &'static str,
    /// True if objects of the kind are namespaced.
    pub namespaced: bool,
}

const fn namespaced(
    api_version: &'static str,
    kind: &'static str,
    plural: &'static str,
) -> Resource {
    Resource {
        api_version,
        kind,
        plural,
        namespaced: true,
    }
}

/// Pods.
pub const PODS: Resource = namespaced("v1", "Pod", "pods");
/// Nodes.
pub const NODES: Resource = Resource {
    api_version: "v1",
    kind: "Node",
    plural: "nodes",
    namespaced: false,
};
/// Namespaces.
pub const NAMESPACES: Resource = Resource {
    api_version: "v1",
    kind: "Namespace",
    plural: "namespaces",
    namespaced: false,
};
/// Service accounts.
pub const SERVICE_ACCOUNTS: Resource = namespaced("v1", "ServiceAccount", "serviceaccounts");
/// Services.
pub const SERVICES: Resource = namespaced("v1", "Service", "services");

/// Kubernetes' own network policies.
pub const NETWORK_POLICIES: Resource =
    namespaced("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies");

/// KubeVirt's running virtual machines.
pub const VIRTUAL_MACHINE_INSTANCES: Resource = namespaced(
    "kubevirt.io/v1",
    "VirtualMachineInstance",
    "virtualmachineinstances",
);
/// KubeVirt's virtual machines.
pub const VIRTUAL_MACHINES: Resource =
    namespaced("kubevirt.io/v1", "VirtualMachine", "virtualmachines");

impl Resource {
    /// Returns true if `kind` is the kind of a list of these objects or of their metadata.
    pub fn is_list(&self, kind: &str) -> bool {
        kind == "PartialObjectMetadataList" || kind.strip_suffix("List") == Some(self.kind)
    }

    /// Returns the URL path of all objects, or of those in a namespace.
    pub fn collection(&self, namespace: Option<&str>) -> String {
        let root = if self.api_version.contains('/') {
            "/apis/"
        } else {
            "/api/"
        };
        let mut path = format!("{root}{}/", self.api_version);
        if let Some(namespace) = namespace {
            path.push_str("namespaces/");
            push_escaped(&mut path, namespace);
            path.push('/');
        }
        path + self.plural
    }
}

/// The location of an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Location {
    /// The resource of the object.
    pub resource: Resource,
    /// The namespace, for namespaced resources.
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
}

impl Location {
    /// Returns the location of a cluster-scoped object.
    pub fn global(resource: Resource, name: impl Into<String>) -> Self {
        Location {
            resource,
            namespace: None,
            name: name.into(),
        }
    }

    /// Returns the location of a namespaced object.
    pub fn namespaced(
        resource: Resource,
        namespace: impl Into<String>,
        name: impl Into<String>,
    ) -> Self {
        Location {
            resource,
            namespace: Some(namespace.into()),
            name: name.into(),
        }
    }

    /// Returns true if an answer is this object. A proxy before the API server may answer with
    /// something else.
    pub fn is_of(&self, answer: &Value) -> bool {
        answer["kind"] == self.resource.kind && self.names(&answer["metadata"])
    }

    /// Returns true if an answer is this object's metadata, from a server that was asked for
    /// metadata only.
    pub fn is_metadata_of(&self, answer: &Value) -> bool {
        answer["kind"] == "PartialObjectMetadata" && self.names(&answer["metadata"])
    }

    fn names(&self, metadata: &Value) -> bool {
        metadata["name"] == *self.name
            && metadata["namespace"].as_str() == self.namespace.as_deref()
    }

    /// Returns the URL path of the object.
    pub fn url_path(&self) -> String {
        let mut path = self.collection();
        path.push('/');
        push_escaped(&mut path, &self.name);
        path
    }

    /// Returns the URL path of the collection in which the object is created.
    pub fn collection(&self) -> String {
        self.resource.collection(self.namespace.as_deref())
    }
}

/// Appends one path segment. Names also come from configuration and may contain any character.
fn push_escaped(path: &mut String, segment: &str) {
    // The client or the server may resolve a segment that consists of dots only.
    if segment.bytes().all(|b| b == b'.') {
        path.push_str(&"%252E".repeat(segment.len()));
    } else {
        path.push_str(&escaped(segment));
    }
}

/// Escapes a path segment or the value of a parameter.
pub fn escaped(text: &str) -> String {
    percent_encoded(text, |byte| matches!(byte, b'-' | b'.' | b'_' | b'~'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_group_in_the_configuration_overrides_discovery() {
        assert_eq!(ApiGroup::from_config(""), None);
        assert_eq!(
            ApiGroup::from_config("ProjectCalico.org/V3"),
            Some(ApiGroup::V3)
        );
        for v1 in ["crd.projectcalico.org/v1", "projectcalico.org", "nonsense"] {
            assert_eq!(ApiGroup::from_config(v1), Some(ApiGroup::CrdV1), "{v1}");
        }
    }

    #[test]
    fn v3_group_is_selected_only_without_v1() {
        assert_eq!(
            ApiGroup::from_served(["apps", "projectcalico.org"]),
            ApiGroup::V3
        );
        assert_eq!(
            ApiGroup::from_served(["projectcalico.org", "crd.projectcalico.org"]),
            ApiGroup::CrdV1
        );
        assert_eq!(
            ApiGroup::from_served(["crd.projectcalico.org"]),
            ApiGroup::CrdV1
        );
        assert_eq!(ApiGroup::from_served([]), ApiGroup::CrdV1);
    }

    #[test]
    fn resource_url_paths_include_group_namespace_and_name() {
        let pod = Location::namespaced(PODS, "default", "web-0");
        assert_eq!(pod.url_path(), "/api/v1/namespaces/default/pods/web-0");
        assert_eq!(pod.collection(), "/api/v1/namespaces/default/pods");
        assert_eq!(PODS.collection(None), "/api/v1/pods");
        let blocks = Resource {
            api_version: "crd.projectcalico.org/v1",
            kind: "IPAMBlock",
            plural: "ipamblocks",
            namespaced: false,
        };
        let block = Location::global(blocks, "10-0-0-0-26");
        assert_eq!(
            block.url_path(),
            "/apis/crd.projectcalico.org/v1/ipamblocks/10-0-0-0-26"
        );
    }

    #[test]
    fn response_is_accepted_only_if_of_the_requested_object() {
        let pod = Location::namespaced(PODS, "default", "web-0");
        let answer = |kind: &str, namespace: &str, name: &str| {
            serde_json::json!({
                "kind": kind, "metadata": {"namespace": namespace, "name": name},
            })
        };
        assert!(pod.is_of(&answer("Pod", "default", "web-0")));
        for other in [
            answer("Node", "default", "web-0"),
            answer("Pod", "other", "web-0"),
            answer("Pod", "default", "web-1"),
            Value::Null,
        ] {
            assert!(!pod.is_of(&other), "{other}");
        }
        assert!(PODS.is_list("PodList") && PODS.is_list("PartialObjectMetadataList"));
        assert!(!PODS.is_list("NodeList") && !PODS.is_list("Pod") && !PODS.is_list("List"));
    }

    #[test]
    fn object_name_is_escaped_within_its_url_segment() {
        for (name, escaped) in [
            ("a/b?c#d%", "a%2Fb%3Fc%23d%25"),
            ("..", "%252E%252E"),
            ("ä", "%C3%A4"),
        ] {
            assert_eq!(
                Location::global(NODES, name).url_path(),
                format!("/api/v1/nodes/{escaped}")
            );
        }
    }
}
