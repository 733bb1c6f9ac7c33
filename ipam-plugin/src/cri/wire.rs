//! The messages of `runtime.v1.RuntimeService/ListPodSandbox` (Kubernetes' Container Runtime
//! Interface), with the fields that this crate needs. The field numbers are part of the protocol.

/// A request for a list of sandboxes.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct ListPodSandboxRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) filter: Option<PodSandboxFilter>,
}

/// The sandboxes to list.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct PodSandboxFilter {
    #[prost(message, optional, tag = "2")]
    pub(super) state: Option<PodSandboxStateValue>,
}

/// The wanted state of a sandbox.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub(super) struct PodSandboxStateValue {
    /// [`READY`], or 1 for a sandbox that is not ready.
    #[prost(int32, tag = "1")]
    pub(super) state: i32,
}

/// The state of a sandbox whose network exists.
pub(super) const READY: i32 = 0;

/// The list of sandboxes.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct ListPodSandboxResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) items: Vec<PodSandbox>,
}

/// A sandbox. Its labels and annotations, which a tenant writes, are not read.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct PodSandbox {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(message, optional, tag = "2")]
    pub(super) metadata: Option<PodSandboxMetadata>,
    #[prost(int32, tag = "3")]
    pub(super) state: i32,
}

/// The pod of a sandbox, as the kubelet names it.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub(super) struct PodSandboxMetadata {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) uid: String,
    #[prost(string, tag = "3")]
    pub(super) namespace: String,
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn request_for_ready_sandboxes_encodes_the_filter() {
        let state = Some(PodSandboxStateValue { state: READY });
        let request = ListPodSandboxRequest {
            filter: Some(PodSandboxFilter { state }),
        };
        // Field 1 contains field 2, which is an empty message, because READY is the default.
        assert_eq!(request.encode_to_vec(), [0x0a, 0x02, 0x12, 0x00]);
    }

    #[test]
    fn response_of_a_runtime_decodes_without_its_unknown_fields() {
        // The only sandbox: id, metadata with name, uid, namespace and attempt, created_at.
        let metadata = b"\x0a\x03web\x12\x02u1\x1a\x02ns\x20\x07";
        let mut sandbox = b"\x0a\x02c1\x12".to_vec();
        sandbox.push(u8::try_from(metadata.len()).unwrap());
        sandbox.extend(metadata);
        sandbox.extend(b"\x20\x09");
        let mut response = vec![0x0a, u8::try_from(sandbox.len()).unwrap()];
        response.extend(sandbox);
        let decoded = ListPodSandboxResponse::decode(&*response).unwrap();
        let metadata = PodSandboxMetadata {
            name: "web".into(),
            uid: "u1".into(),
            namespace: "ns".into(),
        };
        assert_eq!(
            decoded.items,
            [PodSandbox {
                id: "c1".into(),
                metadata: Some(metadata),
                state: READY
            }]
        );
    }
}
