//! Decodes objects that people write, strictly: a mistyped key would otherwise be ignored.

use serde_json::Value;

use crate::api::{
    API_VERSION, ClusterInformation, ClusterInformationSpec, IpPool, IpPoolSpec, IpReservation,
    IpReservationSpec, IpamConfiguration, IpamConfigurationSpec, Node, NodeSpec, Object, Spec,
    Unknown,
};
use crate::failure::Failure;

/// Metadata that only servers write; accepted and dropped.
const SERVER_METADATA: [&str; 4] = [
    "selfLink",
    "generation",
    "deletionGracePeriodSeconds",
    "managedFields",
];

/// The metadata that is stored unchanged, although [`crate::api::ObjectMeta`] does not model it
/// (DS-32).
const SUPPORTED_METADATA: [&str; 2] = ["ownerReferences", "finalizers"];

/// An object of a kind that people may write.
#[derive(Debug, Clone, PartialEq)]
pub enum Manifest {
    /// `kind: IPPool`
    IpPool(IpPool),
    /// `kind: IPReservation`
    IpReservation(IpReservation),
    /// `kind: IPAMConfiguration`
    IpamConfiguration(IpamConfiguration),
    /// `kind: Node`
    Node(Box<Node>),
    /// `kind: ClusterInformation`
    ClusterInformation(ClusterInformation),
}

const KINDS: [&str; 5] = [
    "IPPool",
    "IPReservation",
    "IPAMConfiguration",
    "Node",
    "ClusterInformation",
];

/// Decodes one object, not a list.
pub fn decode(json: Value) -> Result<Manifest, Failure> {
    let Value::Object(object) = &json else {
        return Err(Failure::new(format_args!(
            "a manifest is an object with apiVersion, kind, metadata and spec; found {}",
            type_name(&json)
        )));
    };
    let kind = object
        .get("kind")
        .and_then(Value::as_str)
        .ok_or_else(|| one_of_kinds(Failure::new("the manifest's kind is missing")))?;
    if !KINDS.contains(&kind) {
        let failure = Failure::new(format_args!("unsupported kind {kind:?}"));
        return Err(one_of_kinds(failure));
    }
    let api_version = object
        .get("apiVersion")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if api_version != API_VERSION {
        return Err(
            Failure::new(format_args!("{kind}: apiVersion is {api_version:?}"))
                .way_out(format!("write {API_VERSION:?}")),
        );
    }
    match kind {
        "IPPool" => decode_strict(json, |spec: &IpPoolSpec| {
            vec![("spec".into(), &spec.unknown)]
        })
        .map(Manifest::IpPool),
        "IPReservation" => decode_strict(json, |spec: &IpReservationSpec| {
            vec![("spec".into(), &spec.unknown)]
        })
        .map(Manifest::IpReservation),
        "IPAMConfiguration" => decode_strict(json, |spec: &IpamConfigurationSpec| {
            vec![("spec".into(), &spec.unknown)]
        })
        .map(Manifest::IpamConfiguration),
        "Node" => {
            decode_strict(json, node_unknown_fields).map(|node| Manifest::Node(Box::new(node)))
        }
        _ => decode_strict(json, |spec: &ClusterInformationSpec| {
            vec![("spec".into(), &spec.unknown)]
        })
        .map(Manifest::ClusterInformation),
    }
}

fn one_of_kinds(failure: Failure) -> Failure {
    failure.way_out(format!("write one of {}", KINDS.join(", ")))
}

/// The fields that a type does not model, with the path of their object.
type UnknownFields<'o> = Vec<(String, &'o Unknown)>;

/// Decodes `json` and rejects fields that the type does not have.
fn decode_strict<S: Spec>(
    json: Value,
    spec_unknown: fn(&S) -> UnknownFields<'_>,
) -> Result<Object<S>, Failure> {
    let mut object: Object<S> = serde_path_to_error::deserialize(json).map_err(|error| {
        Failure::new(format_args!("{}: {}", S::KIND, error.path())).because(error.inner())
    })?;
    for field in SERVER_METADATA {
        object.metadata.unknown.remove(field);
    }
    let top = object.unknown.keys().cloned();
    let metadata = object
        .metadata
        .unknown
        .keys()
        .filter(|key| !SUPPORTED_METADATA.contains(&key.as_str()));
    let metadata = metadata.map(|key| format!("metadata.{key}"));
    let spec = spec_unknown(&object.spec).into_iter();
    let spec =
        spec.flat_map(|(path, unknown)| unknown.keys().map(move |key| format!("{path}.{key}")));
    match top.chain(metadata).chain(spec).next() {
        Some(path) => Err(Failure::new(format_args!(
            "{}: the field {path} does not exist",
            S::KIND
        ))
        .way_out("check its spelling")),
        None => Ok(object),
    }
}

fn node_unknown_fields(spec: &NodeSpec) -> UnknownFields<'_> {
    let mut unknown_fields = vec![("spec".to_owned(), &spec.unknown)];
    unknown_fields.extend(
        spec.bgp
            .iter()
            .map(|bgp| ("spec.bgp".to_owned(), &bgp.unknown)),
    );
    unknown_fields.extend(
        spec.wireguard
            .iter()
            .map(|wireguard| ("spec.wireguard".to_owned(), &wireguard.unknown)),
    );
    let orch_refs = spec.orch_refs.iter().enumerate();
    unknown_fields
        .extend(orch_refs.map(|(i, orch_ref)| (format!("spec.orchRefs[{i}]"), &orch_ref.unknown)));
    let addresses = spec.addresses.iter().enumerate();
    unknown_fields
        .extend(addresses.map(|(i, address)| (format!("spec.addresses[{i}]"), &address.unknown)));
    unknown_fields
}

fn type_name(json: &Value) -> &'static str {
    match json {
        Value::Null => "nothing",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn manifest(kind: &str, spec: Value) -> Value {
        json!({"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": "n"}, "spec": spec})
    }

    fn error(json: Value) -> String {
        decode(json).unwrap_err().to_string()
    }

    #[test]
    fn manifests_of_all_five_kinds_decode() {
        let decoded = |kind, spec| decode(manifest(kind, spec)).unwrap();
        let pool = decoded(
            "IPPool",
            json!({"cidr": "10.0.0.0/16", "natOutgoing": true, "allowedUses": ["Tunnel"]}),
        );
        assert!(matches!(pool, Manifest::IpPool(pool) if pool.spec.nat_outgoing));
        let reservation = decoded("IPReservation", json!({"reservedCIDRs": ["10.0.0.0/30"]}));
        assert!(
            matches!(reservation, Manifest::IpReservation(r) if r.spec.reserved_cidrs.len() == 1)
        );
        let settings = decoded(
            "IPAMConfiguration",
            json!({"strictAffinity": true, "ipCooldownSeconds": 5}),
        );
        assert!(
            matches!(settings, Manifest::IpamConfiguration(s) if s.spec.ip_cooldown_seconds == 5)
        );
        let node = decoded(
            "Node",
            json!({"bgp": {"asNumber": 64512}, "orchRefs": [{"orchestrator": "k8s"}]}),
        );
        assert!(matches!(node, Manifest::Node(n) if n.spec.orch_refs.len() == 1));
        let cluster = decoded("ClusterInformation", json!({"datastoreReady": true}));
        assert!(matches!(
            cluster, Manifest::ClusterInformation(c) if c.spec.datastore_ready == Some(true),
        ));
    }

    #[test]
    fn manifest_printed_by_get_decodes_without_server_fields() {
        let mut json = manifest("IPPool", json!({"cidr": "10.0.0.0/16"}));
        json["metadata"] = json!({
            "name": "n", "uid": "u", "resourceVersion": "5",
            "creationTimestamp": "2026-08-22T06:33:20Z",
            "generation": 2, "managedFields": [], "finalizers": ["f"], "labels": {"a": "b"},
        });
        json["status"] = json!({"conditions": []});
        let Manifest::IpPool(pool) = decode(json).unwrap() else {
            panic!("an IPPool")
        };
        assert_eq!(
            pool.metadata.unknown.keys().collect::<Vec<_>>(),
            ["finalizers"]
        );
    }

    #[test]
    fn unknown_manifest_fields_are_named() {
        for (kind, spec, path) in [
            (
                "IPPool",
                json!({"cidr": "10.0.0.0/16", "nodeSelecter": "all()"}),
                "spec.nodeSelecter",
            ),
            (
                "IPReservation",
                json!({"reservedCidrs": []}),
                "spec.reservedCidrs",
            ),
            (
                "IPAMConfiguration",
                json!({"StrictAffinity": true}),
                "spec.StrictAffinity",
            ),
            (
                "Node",
                json!({"bgp": {"asNumbers": 1}}),
                "spec.bgp.asNumbers",
            ),
            ("Node", json!({"wireguard": {"x": 1}}), "spec.wireguard.x"),
            (
                "Node",
                json!({"orchRefs": [{}, {"name": "n"}]}),
                "spec.orchRefs[1].name",
            ),
            (
                "Node",
                json!({"addresses": [{"addr": "n"}]}),
                "spec.addresses[0].addr",
            ),
            ("ClusterInformation", json!({"ready": true}), "spec.ready"),
        ] {
            let expected = format!("{kind}: the field {path} does not exist; check its spelling");
            assert_eq!(error(manifest(kind, spec)), expected);
        }
        let mut json = manifest("Node", json!({}));
        json["metadata"]["label"] = json!({});
        assert!(error(json.clone()).contains("metadata.label does not exist"));
        json["specs"] = json!({});
        assert!(error(json).contains("the field specs does not exist"));
    }

    #[test]
    fn manifest_fields_of_a_wrong_type_are_named() {
        for (spec, path) in [
            (json!({"cidr": 5}), "spec.cidr"),
            (json!({"blockSize": "26"}), "spec.blockSize"),
            (json!({"blockSize": 300}), "spec.blockSize"),
            (
                json!({"allowedUses": ["Workload", 5]}),
                "spec.allowedUses[1]",
            ),
            (json!({"assignmentMode": true}), "spec.assignmentMode"),
            (json!([]), "spec"),
        ] {
            let text = error(manifest("IPPool", spec));
            assert!(text.starts_with(&format!("IPPool: {path}: ")), "{text}");
        }
    }

    #[test]
    fn invalid_manifest_is_rejected_with_the_reason() {
        assert!(error(json!([])).ends_with("found a list"));
        assert!(error(json!(null)).ends_with("found nothing"));
        assert!(
            error(json!({"kind": 5}))
                .starts_with("the manifest's kind is missing; write one of IPPool, ")
        );
        assert!(error(manifest("Pool", json!({}))).starts_with("unsupported kind \"Pool\""));
        let mut json = manifest("IPPool", json!({}));
        json["apiVersion"] = json!("crd.projectcalico.org/v1");
        assert!(error(json.clone()).ends_with("write \"projectcalico.org/v3\""));
        json["apiVersion"] = json!(null);
        assert!(error(json).starts_with("IPPool: apiVersion is \"\""));
    }
}
