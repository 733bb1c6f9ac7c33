//! Node: a Kubernetes node with annotations, in its v3 form (DS-88). A write is a patch, which,
//! unlike upstream's replacement, does not overwrite a concurrent change of the kubelet (DS-89).

mod merge;

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::{Map, Value, json};

pub use self::merge::{DifferingField, merge_node};
use super::json::{Fields, put_object, take_object, text};
use super::revision::ObjectRevision;
use crate::net::{Cidr, IpVersion};

const LABELS: &str = "projectcalico.org/labels";
const ANNOTATIONS: &str = "projectcalico.org/annotations";
const KUBE_LABELS: &str = "projectcalico.org/kube-labels";

#[derive(Clone, Copy)]
enum AnnotationFormat {
    Text,
    Address(IpVersion),
    /// An address with or without a prefix length.
    AddressOrNetwork(IpVersion),
    AsNumber,
}

/// The annotations that contain fields of the v3 node. Each entry has the name after
/// `projectcalico.org/`, the object in the v3 `spec` (empty for the `spec` itself), its field, and
/// the form of the value.
const ANNOTATED_FIELDS: [(&str, &str, &str, AnnotationFormat); 11] = [
    (
        "IPv4Address",
        "bgp",
        "ipv4Address",
        AnnotationFormat::AddressOrNetwork(IpVersion::V4),
    ),
    (
        "IPv6Address",
        "bgp",
        "ipv6Address",
        AnnotationFormat::AddressOrNetwork(IpVersion::V6),
    ),
    (
        "RouteReflectorClusterID",
        "bgp",
        "routeReflectorClusterID",
        AnnotationFormat::Address(IpVersion::V4),
    ),
    (
        "IPv4IPIPTunnelAddr",
        "bgp",
        "ipv4IPIPTunnelAddr",
        AnnotationFormat::Address(IpVersion::V4),
    ),
    (
        "IPv4VXLANTunnelAddr",
        "",
        "ipv4VXLANTunnelAddr",
        AnnotationFormat::Address(IpVersion::V4),
    ),
    (
        "VXLANTunnelMACAddr",
        "",
        "vxlanTunnelMACAddr",
        AnnotationFormat::Text,
    ),
    (
        "IPv6VXLANTunnelAddr",
        "",
        "ipv6VXLANTunnelAddr",
        AnnotationFormat::Address(IpVersion::V6),
    ),
    (
        "VXLANTunnelMACAddrV6",
        "",
        "vxlanTunnelMACAddrV6",
        AnnotationFormat::Text,
    ),
    (
        "IPv4WireguardInterfaceAddr",
        "wireguard",
        "interfaceIPv4Address",
        AnnotationFormat::Address(IpVersion::V4),
    ),
    (
        "IPv6WireguardInterfaceAddr",
        "wireguard",
        "interfaceIPv6Address",
        AnnotationFormat::Address(IpVersion::V6),
    ),
    ("ASNumber", "bgp", "asNumber", AnnotationFormat::AsNumber),
];

/// Returns the v3 node of a Kubernetes node. Invalid annotations count as missing.
pub(super) fn from_kubernetes(mut object: Fields) -> Fields {
    let mut given = take_object(&mut object, "metadata");
    let kube_labels = take_object(&mut given, "labels");
    let annotations = Annotations(take_object(&mut given, "annotations"));
    let spec = take_object(&mut object, "spec");
    let status = take_object(&mut object, "status");

    let name = given.get("name").cloned().unwrap_or_default();
    let mut metadata = Fields::new();
    for key in ["name", "uid", "creationTimestamp", "deletionTimestamp"] {
        metadata.extend(given.remove_entry(key));
    }
    let mut own = annotations.texts(ANNOTATIONS);
    let recorded = if kube_labels.is_empty() {
        "null".into()
    } else {
        Value::Object(kube_labels.clone()).to_string()
    };
    own.insert(KUBE_LABELS.into(), recorded.into());
    put_object(&mut metadata, "annotations", own);
    let mut labels = annotations.texts(LABELS);
    labels.extend(kube_labels);
    put_object(&mut metadata, "labels", labels);

    let mut v3 = Fields::new();
    v3.insert("metadata".into(), metadata.into());
    v3.insert("spec".into(), v3_spec(&annotations, &name, &status).into());
    v3.insert("status".into(), v3_status(&annotations, &spec).into());
    v3
}

fn v3_spec(annotations: &Annotations, name: &Value, status: &Fields) -> Fields {
    let (mut spec, mut bgp, mut wireguard) = (Fields::new(), Fields::new(), Fields::new());
    for (annotation, section, field, form) in ANNOTATED_FIELDS {
        let fields = match section {
            "bgp" => &mut bgp,
            "wireguard" => &mut wireguard,
            _ => &mut spec,
        };
        fields.extend(
            annotations
                .value(annotation, form)
                .map(|value| (field.to_owned(), value)),
        );
    }
    let addresses = addresses(
        ["ipv4Address", "ipv6Address"].map(|field| text(&bgp, field)),
        status,
    );
    if !addresses.is_empty() {
        spec.insert("addresses".into(), addresses.into());
    }
    put_object(&mut spec, "bgp", bgp);
    put_object(&mut spec, "wireguard", wireguard);
    if let Some(interfaces) = annotations.interfaces() {
        spec.insert("interfaces".into(), interfaces);
    }
    spec.insert(
        "orchRefs".into(),
        json!([{"nodeName": name, "orchestrator": "k8s"}]),
    );
    spec
}

fn v3_status(annotations: &Annotations, spec: &Fields) -> Fields {
    let mut status = Fields::new();
    let keys = [
        ("WireguardPublicKey", "wireguardPublicKey"),
        ("WireguardPublicKeyV6", "wireguardPublicKeyV6"),
    ];
    for (annotation, field) in keys {
        status.extend(
            annotations
                .text(annotation)
                .map(|text| (field.to_owned(), text.into())),
        );
    }
    if let Some(cidrs) = spec
        .get("podCIDRs")
        .filter(|cidrs| cidrs.as_array().is_some_and(|c| !c.is_empty()))
    {
        status.insert("podCIDRs".into(), cidrs.clone());
    }
    status
}

fn addresses(bgp: [Option<&str>; 2], status: &Fields) -> Vec<Value> {
    let calico = bgp
        .into_iter()
        .flatten()
        .map(|address| json!({"address": address, "type": "CalicoNodeIP"}));
    let listed = status.get("addresses").and_then(Value::as_array);
    let kubernetes = listed.into_iter().flatten().filter(|address| {
        matches!(address["type"].as_str(), Some("InternalIP" | "ExternalIP"))
            && address["address"].is_string()
    });
    calico
        .chain(kubernetes.map(|a| json!({"address": a["address"], "type": a["type"]})))
        .collect()
}

struct Annotations(Fields);

impl Annotations {
    /// Returns the text of the annotation `projectcalico.org/NAME`; `None` if it is missing or
    /// empty.
    fn text(&self, name: &str) -> Option<&str> {
        self.0
            .get(&format!("projectcalico.org/{name}"))?
            .as_str()
            .filter(|text| !text.is_empty())
    }

    /// Returns the value of the annotation `projectcalico.org/NAME`, if it has the given form.
    fn value(&self, name: &str, form: AnnotationFormat) -> Option<Value> {
        let text = self.text(name)?;
        let address = text.parse().ok();
        let is_valid = match form {
            AnnotationFormat::Text => true,
            AnnotationFormat::Address(version) => {
                address.is_some_and(|address| IpVersion::of(address) == version)
            }
            AnnotationFormat::AddressOrNetwork(version) => {
                let address = Cidr::parse_with_address(text)
                    .map(|(_, address)| address)
                    .ok()
                    .or(address);
                address.is_some_and(|address| IpVersion::of(address) == version)
            }
            AnnotationFormat::AsNumber => return as_number(text),
        };
        is_valid.then(|| text.into())
    }

    /// Returns the texts in the annotation `key`, which is a JSON object.
    fn texts(&self, key: &str) -> Map<String, Value> {
        let parsed = self
            .0
            .get(key)
            .and_then(Value::as_str)
            .map(serde_json::from_str::<BTreeMap<String, String>>);
        let texts = parsed.and_then(Result::ok).unwrap_or_default();
        texts
            .into_iter()
            .map(|(key, value)| (key, value.into()))
            .collect()
    }

    /// Returns the node's interfaces, without entries in their lists of addresses that are not
    /// addresses.
    fn interfaces(&self) -> Option<Value> {
        let mut interfaces: Vec<Value> = serde_json::from_str(self.text("Interfaces")?).ok()?;
        for addresses in interfaces
            .iter_mut()
            .filter_map(|interface| interface.get_mut("addresses")?.as_array_mut())
        {
            addresses.retain(|address| address.as_str().is_some_and(is_address));
        }
        Some(interfaces.into())
    }
}

/// Parses an AS number: decimal, or two halves separated by a dot (DS-108).
fn as_number(text: &str) -> Option<Value> {
    let number = match text.split_once('.') {
        None => text.parse::<u32>().ok()?,
        Some((high, low)) => {
            (u32::from(high.parse::<u16>().ok()?) << 16) | u32::from(low.parse::<u16>().ok()?)
        }
    };
    Some(number.into())
}

fn is_address(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok() || text.parse::<Cidr>().is_ok()
}

/// Returns the patch that sets the annotations of [`ANNOTATED_FIELDS`], of Calico's own labels and
/// of its own annotations, or deletes those without a value. The patch fails if the node has
/// changed since it was read.
pub(super) fn update_patch(node: &Value, revision: &ObjectRevision) -> Value {
    let mut annotations = Map::new();
    for (name, section, field, form) in ANNOTATED_FIELDS {
        let value = annotation_text(node, section, field, form);
        annotations.insert(format!("projectcalico.org/{name}"), value.into());
    }
    for (name, own) in [
        (LABELS, own_labels(node)),
        (ANNOTATIONS, own_annotations(node)),
    ] {
        let value = (!own.is_empty()).then(|| Value::Object(own).to_string());
        annotations.insert(name.into(), value.into());
    }
    let mut metadata = Map::new();
    metadata.insert("annotations".into(), annotations.into());
    metadata.insert(
        "resourceVersion".into(),
        revision.resource_version.as_str().into(),
    );
    json!({ "metadata": metadata })
}

/// Returns the text of the annotation with a field of a v3 node; `None` if the field has no value.
fn annotation_text(
    node: &Value,
    section: &str,
    field: &str,
    form: AnnotationFormat,
) -> Option<String> {
    let spec = &node["spec"];
    let fields = if section.is_empty() {
        spec
    } else {
        &spec[section]
    };
    match fields.get(field)? {
        Value::String(text) if text.is_empty() => None,
        Value::String(text) => match form {
            AnnotationFormat::AsNumber => {
                Some(as_number(text).map_or_else(|| text.clone(), |number| number.to_string()))
            }
            _ => Some(text.clone()),
        },
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Returns the labels of a v3 node that are not labels of the Kubernetes node.
fn own_labels(node: &Value) -> Fields {
    let kube = kube_labels(node);
    let mut labels = node["metadata"]["labels"]
        .as_object()
        .cloned()
        .unwrap_or_default();
    labels.retain(|label, _| !kube.contains_key(label));
    labels
}

fn own_annotations(node: &Value) -> Fields {
    let mut annotations = node["metadata"]["annotations"]
        .as_object()
        .cloned()
        .unwrap_or_default();
    annotations.remove(KUBE_LABELS);
    annotations
}

/// Returns the labels that a v3 node has from the Kubernetes node.
fn kube_labels(node: &Value) -> Fields {
    let recorded = node["metadata"]["annotations"][KUBE_LABELS].as_str();
    recorded
        .and_then(|text| serde_json::from_str::<Option<Fields>>(text).ok()?)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
