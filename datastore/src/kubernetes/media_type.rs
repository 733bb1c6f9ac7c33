//! The media types of responses. A server older than Kubernetes 1.15 does not know those of the
//! metadata, and sends whole objects.

pub(super) const JSON: &str = "application/json";
/// The metadata of an object, or the whole object.
pub(super) const METADATA: &str =
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
/// The metadata of the objects of a list, or the whole objects.
pub(super) const METADATA_LIST: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
