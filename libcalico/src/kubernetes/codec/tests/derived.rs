//! Calico's objects that are derived from Kubernetes' own: endpoints, profiles and nodes.

use super::*;

fn pod(node: &str) -> Value {
    json!({
        "metadata": {"name": "web-0", "namespace": "ns", "uid": UID, "resourceVersion": "4711",
            "annotations": {"cni.projectcalico.org/containerID": "c1"}},
        "spec": {"nodeName": node},
    })
}

#[test]
fn workload_endpoints_decode_from_pods() {
    let key = ObjectKey::namespaced("ns", "node--1-k8s-web--0-eth0");
    let range = one::<WorkloadEndpoint>(&key);
    let codec = v1().with_interface_prefix("eni");
    let read =
        decode_entry::<WorkloadEndpoint>(&codec.decode(&range, pod("node-1")).unwrap().entry)
            .unwrap();
    assert!(read.value.spec.interface_name.starts_with("eni"));
    assert_eq!(
        (
            read.value.metadata.resource_version.as_str(),
            read.value.metadata.uid.as_str()
        ),
        ("4711", UID)
    );
    assert_eq!(
        codec.decode(&range, pod("node-2")),
        None,
        "a pod on another node has another endpoint"
    );
    assert_eq!(codec.decode(&range, pod("")), None);
    let select = ObjectSelect {
        namespace: Some("ns".into()),
        name_prefix: "node--1-k8s-web--0-".into(),
    };
    assert!(
        codec
            .decode(&many::<WorkloadEndpoint>(&select), pod("node-1"))
            .is_some()
    );

    let mut value = read.value.clone();
    value.spec.ip_networks = vec!["10.0.0.1/32".into()];
    let patch = |write: Write| match codec.request(&write).unwrap() {
        Request::PatchStatus { location, body } => (location.url_path(), body["metadata"].clone()),
        other => panic!("{other:?}"),
    };
    let (path, metadata) = patch(Write::update(&key, &value, &read.revision).unwrap());
    assert_eq!(path, "/api/v1/namespaces/ns/pods/web-0");
    assert_eq!(
        metadata["annotations"]["cni.projectcalico.org/podIPs"],
        "10.0.0.1/32"
    );
    assert_eq!(
        (&metadata["uid"], metadata.get("resourceVersion")),
        (&json!(UID), None)
    );
    let (_, metadata) = patch(Write::create(&key, &value).unwrap());
    assert_eq!(metadata.get("uid"), None);
    let (_, metadata) = patch(Write::delete::<WorkloadEndpoint>(
        &key,
        Some(&read.revision),
    ));
    assert_eq!(
        (&metadata["uid"], &metadata["resourceVersion"]),
        (&json!(UID), &json!("4711"))
    );
    assert_eq!(
        codec.revision("WorkloadEndpoint", &pod("node-1")),
        read.revision
    );
}

/// The endpoint of a terminated pod has no addresses before the deletion (DS-78).
#[test]
fn endpoint_deletion_is_sent_once() {
    let key = ObjectKey::namespaced("ns", "node--1-k8s-web--0-eth0");
    let deletion = |pod: &Value| {
        let found = v1()
            .decode(&one::<WorkloadEndpoint>(&key), pod.clone())
            .unwrap();
        let read = decode_entry::<WorkloadEndpoint>(&found.entry).unwrap();
        assert_eq!(read.value.spec.ip_networks, [""; 0]);
        v1().request(&Write::delete::<WorkloadEndpoint>(
            &key,
            Some(&read.revision),
        ))
        .unwrap()
    };
    let mut pod = pod("node-1");
    pod["status"] = json!({"phase": "Succeeded", "podIP": "10.0.0.1"});
    pod["metadata"]["annotations"]["cni.projectcalico.org/podIP"] = "10.0.0.1/32".into();
    pod["metadata"]["annotations"]["cni.projectcalico.org/podIPs"] = "10.0.0.1/32".into();
    let Request::PatchStatus { body, .. } = deletion(&pod) else {
        panic!()
    };
    for (key, value) in body["metadata"]["annotations"].as_object().unwrap() {
        pod["metadata"]["annotations"][key] = value.clone();
    }
    assert!(matches!(deletion(&pod), Request::Nothing(_)));
}

#[test]
fn pods_and_namespaces_decode_unchanged() {
    let found = v1()
        .decode(
            &one::<Pod>(&ObjectKey::namespaced("ns", "web-0")),
            pod("node-1"),
        )
        .unwrap();
    let read = decode_entry::<Pod>(&found.entry).unwrap();
    assert_eq!(
        (
            read.value.spec.node_name.as_str(),
            read.value.metadata.resource_version.as_str()
        ),
        ("node-1", "4711")
    );
    let namespace =
        json!({"metadata": {"name": "ns", "labels": {"a": "b"}, "resourceVersion": "1"}});
    let found = v1()
        .decode(
            &one::<super::super::super::Namespace>(&ObjectKey::global("ns")),
            namespace,
        )
        .unwrap();
    let read = decode_entry::<super::super::super::Namespace>(&found.entry).unwrap();
    assert_eq!(read.value.metadata.labels["a"], "b");
}

#[test]
fn writes_of_derived_objects_are_rejected() {
    let node = Node::new("n", Default::default());
    let profile = Profile::new("kns.ns", Default::default());
    let network = Profile::new("k8s-pod-network", Default::default());
    let container = WorkloadEndpoint::new("n-cni-c1-eth0", Default::default());
    for write in [
        Write::create(&node.key(), &node),
        Ok(Write::delete::<Node>(&node.key(), None)),
        Write::create(&profile.key(), &profile),
        Write::create(&network.key(), &network),
        Write::create(
            &ObjectKey::namespaced("default", "n-cni-c1-eth0"),
            &container,
        ),
    ] {
        let error = v1().request(&write.unwrap()).unwrap_err();
        assert!(matches!(error, CodecError::Unsupported { .. }), "{error}");
    }
}

#[test]
fn profiles_and_nodes_decode_from_kubernetes_objects() {
    let namespace = json!({"metadata": {"name": "ns", "uid": UID, "resourceVersion": "1"}});
    let found = v1()
        .decode(&one::<Profile>(&ObjectKey::global("kns.ns")), namespace)
        .unwrap();
    assert_eq!(
        decode_entry::<Profile>(&found.entry)
            .unwrap()
            .value
            .spec
            .labels_to_apply["pcns.projectcalico.org/name"],
        "ns"
    );
    let node = json!({
        "metadata": {"name": "n", "uid": UID, "resourceVersion": "1", "labels": {"a": "b"}}
    });
    let found = v1()
        .decode(&one::<Node>(&ObjectKey::global("n")), node.clone())
        .unwrap();
    assert_eq!(
        decode_entry::<Node>(&found.entry)
            .unwrap()
            .value
            .metadata
            .labels["a"],
        "b"
    );
    assert!(
        v1().decode(&many::<Node>(&ObjectSelect::default()), node)
            .is_some()
    );
}

/// The CNI plugin's user may not list pods (DS-83).
#[test]
fn endpoints_of_a_pod_are_read_with_a_single_get() {
    let of = |namespace: Option<&str>, prefix: &str| {
        let select = ObjectSelect {
            namespace: namespace.map(str::to_owned),
            name_prefix: prefix.into(),
        };
        v1().query(&many::<WorkloadEndpoint>(&select)).unwrap()
    };
    let pod = Query::Get(Location::namespaced(
        super::super::super::PODS,
        "ns",
        "web-0",
    ));
    assert_eq!(of(Some("ns"), "node--1-k8s-web--0-"), pod);
    assert_eq!(of(Some("ns"), "node--1-k8s-web--0-eth"), pod);
    let paths: Vec<_> = [
        of(Some("ns"), "node--1-k8s-web--0"),
        of(Some("ns"), "node--1-k8s-web--"),
        of(None, ""),
    ]
    .map(|query| match query {
        Query::List(list) => list.url_path(),
        other => panic!("{other:?}"),
    })
    .into();
    assert_eq!(
        paths,
        [
            "/api/v1/namespaces/ns/pods",
            "/api/v1/namespaces/ns/pods",
            "/api/v1/pods"
        ]
    );
    assert_eq!(
        v1().query(&one::<Pod>(&ObjectKey::namespaced("ns", "web-0")))
            .unwrap(),
        pod
    );
}
