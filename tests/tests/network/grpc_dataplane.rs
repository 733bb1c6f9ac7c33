//! A dataplane behind gRPC, on a Unix socket.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::thread;

use dataplane::grpc::wire::{AddReply, AddRequest, DelReply, DelRequest};
use integration_tests::cluster::{Cluster, NAMESPACE, Pod, on};
use integration_tests::content::{Content, NETWORK};
use integration_tests::kernel;
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

#[derive(Default)]
struct Script {
    added: Vec<AddRequest>,
    deleted: Vec<DelRequest>,
    /// The error of every call; empty for success.
    refusal: String,
    /// The interface and the MAC address in the server's responses.
    made: (String, String),
    /// Whether to fail an Add as if the connection was lost.
    loses_answer: bool,
    /// The error of a Del if `refusal` is empty; empty for success.
    deletion_refusal: String,
}

#[derive(Clone)]
struct FakeDataplane {
    script: Arc<Mutex<Script>>,
    socket: PathBuf,
}

impl FakeDataplane {
    fn serve(cluster: &Cluster<'_>) -> FakeDataplane {
        let socket = cluster.host.dir("grpc").join("dataplane.sock");
        let made = ("tap0".to_owned(), "02:00:00:00:00:07".to_owned());
        let script = Arc::new(Mutex::new(Script {
            made,
            ..Script::default()
        }));
        let fake = FakeDataplane {
            script,
            socket: socket.clone(),
        };
        let served = fake.clone();
        let (listening, ready) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let listener = UnixListener::bind(&socket).unwrap();
                listening.send(()).unwrap();
                let connections = futures::stream::unfold(listener, |listener| async {
                    Some((listener.accept().await.map(|(stream, _)| stream), listener))
                });
                let _ = Server::builder()
                    .serve_with_incoming(served, Box::pin(connections))
                    .await;
            });
        });
        ready.recv().unwrap();
        fake
    }

    /// Loads content into the datastore. Returns a configuration with this dataplane.
    fn conf(&self, cluster: &Cluster<'_>) -> Value {
        cluster.load(&Content::dual_stack());
        let socket = format!("unix://{}", self.socket.display());
        let options = json!({ "type": "grpc", "socket": socket, "colour": "blue" });
        cluster.conf(
            "node1",
            json!({ "dataplane_options": options, "mtu": 1400 }),
        )
    }

    fn script<T>(&self, with: impl FnOnce(&mut Script) -> T) -> T {
        with(&mut self.script.lock().unwrap())
    }

    fn calls(&self) -> (usize, usize) {
        self.script(|script| (script.added.len(), script.deleted.len()))
    }
}

impl UnaryService<AddRequest> for FakeDataplane {
    type Response = AddReply;
    type Future = Ready<Result<Response<AddReply>, Status>>;

    fn call(&mut self, request: Request<AddRequest>) -> Self::Future {
        ready(self.script(|script| {
            script.added.push(request.into_inner());
            if script.loses_answer {
                return Err(Status::unavailable("connection lost"));
            }
            Ok(Response::new(AddReply {
                successful: script.refusal.is_empty(),
                error_message: script.refusal.clone(),
                host_interface_name: script.made.0.clone(),
                container_mac: script.made.1.clone(),
            }))
        }))
    }
}

impl UnaryService<DelRequest> for FakeDataplane {
    type Response = DelReply;
    type Future = Ready<Result<Response<DelReply>, Status>>;

    fn call(&mut self, request: Request<DelRequest>) -> Self::Future {
        ready(Ok(Response::new(self.script(|script| {
            script.deleted.push(request.into_inner());
            let refusal = if script.refusal.is_empty() {
                &script.deletion_refusal
            } else {
                &script.refusal
            };
            DelReply {
                successful: refusal.is_empty(),
                error_message: refusal.clone(),
            }
        }))))
    }
}

impl Service<http::Request<Body>> for FakeDataplane {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let fake = self.clone();
        Box::pin(async move {
            Ok(match request.uri().path() {
                "/cni.CniDataplane/Add" => {
                    Grpc::new(ProstCodec::<AddReply, AddRequest>::default())
                        .unary(fake, request)
                        .await
                }
                "/cni.CniDataplane/Del" => {
                    Grpc::new(ProstCodec::<DelReply, DelRequest>::default())
                        .unary(fake, request)
                        .await
                }
                other => panic!("no method {other}"),
            })
        })
    }
}

impl NamedService for FakeDataplane {
    const NAME: &'static str = "cni.CniDataplane";
}

fn assert_kernel_untouched(cluster: &Cluster<'_>, pod: &Pod) {
    assert_eq!(kernel::host().unwrap()["links"], json!({}));
    assert_eq!(
        kernel::pod(cluster.host, &pod.name).unwrap()["links"],
        json!({})
    );
}

#[on(etcd, local)]
fn grpc_server_gets_one_add_and_one_del_with_all_fields(cluster: &Cluster<'_>) {
    let fake = FakeDataplane::serve(cluster);
    let conf = fake.conf(cluster);
    let pod = cluster.pod(1);
    let netns = pod.netns.display().to_string();
    let result = cluster.add(&pod, &conf);
    assert_eq!(result["interfaces"][0]["name"], "tap0");
    assert_eq!(result["interfaces"][1]["mac"], "02:00:00:00:00:07");
    assert_eq!(fake.calls(), (1, 0));

    let endpoints = cluster.endpoints();
    let endpoint = endpoints.values().next().unwrap();
    let spec = &endpoint["spec"];
    assert_eq!(
        (&spec["interfaceName"], &spec["mac"]),
        (&json!("tap0"), &json!("02:00:00:00:00:07"))
    );
    fake.script(|script| {
        let asked = &script.added[0];
        assert_eq!(
            (asked.interface_name.as_str(), &asked.netns),
            ("eth0", &netns)
        );
        assert_eq!(asked.desired_host_interface_name, "cali00000001ccc");
        assert_eq!(asked.settings.unwrap().mtu, 1400);
        let addresses: Vec<_> = asked
            .container_ips
            .iter()
            .map(|ip| ip.address.as_str())
            .collect();
        assert_eq!(json!(addresses), json!([result["ips"][0]["address"]]));
        assert!(addresses[0].ends_with("/26"), "{addresses:?}");
        assert_eq!(asked.container_routes, ["0.0.0.0/0", "::/0"]);
        assert_eq!(asked.dataplane_options["colour"], "blue");
        let workload = asked.workload.as_ref().unwrap();
        assert_eq!(json!(workload.name), endpoint["metadata"]["name"]);
        assert_eq!(
            (workload.orchestrator.as_str(), workload.node.as_str()),
            ("cni", "node1")
        );
    });
    assert_kernel_untouched(cluster, &pod);
    assert_eq!(
        cluster.accounts().held.into_values().collect::<Vec<_>>(),
        [format!("{NETWORK}.{}", pod.container_id)]
    );

    cluster.delete(&pod, &conf);
    assert_eq!(fake.calls(), (1, 1));
    fake.script(|script| {
        let asked = &script.deleted[0];
        assert_eq!(
            (asked.interface_name.as_str(), &asked.netns),
            ("eth0", &netns)
        );
        assert_eq!(asked.dataplane_options["colour"], "blue");
    });
    cluster.assert_nothing_left();
}

#[on(kubernetes_v1)]
fn grpc_server_gets_the_annotations_of_a_kubernetes_pod(cluster: &Cluster<'_>) {
    let fake = FakeDataplane::serve(cluster);
    let conf = fake.conf(cluster);
    let annotations = json!({
        "vendor.example/queues": "4", "cni.projectcalico.org/ipv4pools": "[\"10.65.0.0/16\"]",
    });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "pod1", "namespace": NAMESPACE, "labels": { "app": "web" },
            "annotations": annotations,
        },
        "spec": { "nodeName": "node1", "containers": [{ "name": "c", "image": "none" }] },
    });
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods");
    cluster
        .objects()
        .client()
        .create(&path, &pod)
        .unwrap()
        .success();
    let pod = cluster.pod(1);
    cluster.add(&pod, &conf);
    let workload = |script: &mut Script| script.added.pop().unwrap().workload.unwrap();
    let added = fake.script(workload);
    assert_eq!(json!(added.annotations), annotations);
    assert_eq!(
        (added.labels["app"].as_str(), added.pod.as_str()),
        ("web", "pod1")
    );
    cluster.delete(&pod, &conf);

    let mut other = conf;
    other["policy"] = json!({ "type": "other" });
    cluster.add(&pod, &other);
    assert_eq!(
        fake.script(workload).annotations.len(),
        0,
        "with this policy type the pod is not read"
    );
}

#[on(etcd, local)]
fn add_refused_by_the_grpc_server_releases_the_addresses(cluster: &Cluster<'_>) {
    let fake = FakeDataplane::serve(cluster);
    let conf = fake.conf(cluster);
    let pod = cluster.pod(1);
    fake.script(|script| script.refusal = "out of taps".into());
    let error = cluster.verb("ADD", &pod, &conf).run().error();
    assert!(
        error.msg.contains("out of taps") && error.details.contains("released"),
        "{error:?}"
    );
    assert_eq!(fake.calls().0, 1);
    cluster.assert_nothing_left();
}

/// Shows SEC-55.
#[on(etcd, local)]
fn add_without_a_grpc_response_keeps_the_addresses_until_del(cluster: &Cluster<'_>) {
    let fake = FakeDataplane::serve(cluster);
    let conf = fake.conf(cluster);
    let pod = cluster.pod(1);
    let refused = || cluster.verb("ADD", &pod, &conf).run().error();
    let kept = "failed while setting up the interface; the interface may exist; DEL will release \
                its addresses";
    // The server may still create the interface after the plugin stopped waiting.
    fake.script(|script| script.loses_answer = true);
    let error = refused();
    assert!(
        error.msg.contains("connection lost") && error.details == kept,
        "{error:?}"
    );
    assert_eq!((cluster.accounts().held.len(), fake.calls()), (1, (1, 0)));
    fake.script(|script| script.loses_answer = false);
    cluster.delete(&pod, &conf);
    assert_eq!(fake.calls(), (1, 1));
    cluster.assert_nothing_left();

    fake.script(|script| {
        script.made.1 = "not a MAC".into();
        script.deletion_refusal = "the tap is busy".into();
    });
    let error = refused();
    assert!(
        error.details.contains("the tap is busy") && error.details.ends_with(kept),
        "{error:?}"
    );
    assert_eq!(cluster.accounts().held.len(), 1);
    fake.script(|script| script.deletion_refusal.clear());
    cluster.delete(&pod, &conf);
    cluster.assert_nothing_left();
}

#[on(etcd, local)]
fn interface_invalid_for_an_endpoint_is_deleted_again(cluster: &Cluster<'_>) {
    let fake = FakeDataplane::serve(cluster);
    let conf = fake.conf(cluster);
    for (number, (name, mac)) in [
        ("tap0", "not a MAC"),
        ("a name / that no interface has", "02:00:00:00:00:07"),
    ]
    .into_iter()
    .enumerate()
    {
        fake.script(|script| script.made = (name.into(), mac.into()));
        cluster
            .verb("ADD", &cluster.pod(number), &conf)
            .run()
            .error();
        assert_eq!(fake.calls(), (number + 1, number + 1), "{name}, {mac}");
        cluster.assert_nothing_left();
    }
}

#[on(etcd, local)]
fn del_refused_by_the_grpc_server_keeps_the_addresses_until_del_succeeds(cluster: &Cluster<'_>) {
    let fake = FakeDataplane::serve(cluster);
    let conf = fake.conf(cluster);
    let pod = cluster.pod(1);
    cluster.add(&pod, &conf);
    fake.script(|script| script.refusal = "the tap is busy".into());
    let error = cluster.verb("DEL", &pod, &conf).run().error();
    assert!(error.msg.contains("the tap is busy"), "{error:?}");
    assert_eq!(
        (cluster.accounts().held.len(), cluster.endpoints().len()),
        (1, 1)
    );
    fake.script(|script| script.refusal.clear());
    cluster.delete(&pod, &conf);
    cluster.assert_nothing_left();
}

#[on(etcd, local)]
fn missing_grpc_server_is_an_error_naming_the_socket(cluster: &Cluster<'_>) {
    let fake = FakeDataplane::serve(cluster);
    let mut conf = fake.conf(cluster);
    conf["dataplane_options"]["socket"] = json!("unix:///run/lab/nobody.sock");
    let pod = cluster.pod(1);
    for verb in ["ADD", "DEL"] {
        let error = cluster.verb(verb, &pod, &conf).run().error();
        assert!(
            error.msg.contains("/run/lab/nobody.sock"),
            "{verb}: {error:?}"
        );
        cluster.assert_nothing_left();
    }
}

/// Shows SEC-56.
#[on(etcd, local)]
fn gc_keeps_grpc_containers_unless_running_containers_are_included(cluster: &Cluster<'_>) {
    let fake = FakeDataplane::serve(cluster);
    let mut conf = fake.conf(cluster);
    cluster.add(&cluster.pod(1), &conf);
    let before = cluster.state();
    conf["cniVersion"] = json!("1.1.0");
    conf["cni.dev/valid-attachments"] = json!([]);
    let gc = |conf: &Value| {
        let call = cluster
            .plugins
            .call("calico")
            .env("CNI_COMMAND", "GC")
            .stdin(conf.to_string());
        call.run().success();
    };
    gc(&conf);
    assert_eq!(cluster.state(), before);
    conf["feature_control"] = json!({ "gc_running_containers": true });
    gc(&conf);
    cluster.assert_nothing_left();
}

/// Such a dataplane may not need the pod's network namespace.
#[on(etcd, local)]
fn grpc_dataplane_with_netns_override_accepts_the_plugins_own_namespace(cluster: &Cluster<'_>) {
    let fake = FakeDataplane::serve(cluster);
    let conf = fake.conf(cluster);
    let pod = Pod {
        netns: "/proc/self/ns/net".into(),
        ..cluster.pod(1)
    };
    assert_eq!(cluster.verb("ADD", &pod, &conf).run().error().code, 8);
    assert_eq!(fake.calls(), (0, 0));
    for verb in ["ADD", "DEL"] {
        cluster
            .verb(verb, &pod, &conf)
            .env("CNI_NETNS_OVERRIDE", "1")
            .run()
            .success();
    }
    assert_eq!(fake.calls(), (1, 1));
    cluster.assert_nothing_left();
}
