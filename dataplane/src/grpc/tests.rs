use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use prost::Message;
use tokio::net::UnixListener;
use tonic::Response;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::{Grpc as ServerGrpc, NamedService, UnaryService};
use tonic::transport::Server;

use super::wire::{ContainerSettings, IpConfig, NO_GATEWAY, Port, WorkloadIds};
use super::*;

#[derive(Clone)]
struct Fake {
    added: Arc<Mutex<Vec<AddRequest>>>,
    deleted: Arc<Mutex<Vec<DelRequest>>>,
    /// The error message of a failure; `None` to succeed.
    refusal: Arc<Mutex<Option<String>>>,
}

impl Fake {
    fn new() -> Self {
        Fake {
            added: Arc::default(),
            deleted: Arc::default(),
            refusal: Arc::default(),
        }
    }

    fn refuse(&self, reason: Option<&str>) {
        *self.refusal.lock().unwrap() = reason.map(str::to_owned);
    }

    fn verdict(&self) -> (bool, String) {
        let refusal = self.refusal.lock().unwrap().clone();
        (refusal.is_none(), refusal.unwrap_or_default())
    }
}

impl UnaryService<AddRequest> for Fake {
    type Response = AddReply;
    type Future = Ready<Result<Response<AddReply>, Status>>;

    fn call(&mut self, request: Request<AddRequest>) -> Self::Future {
        self.added.lock().unwrap().push(request.into_inner());
        let (successful, error_message) = self.verdict();
        ready(Ok(Response::new(AddReply {
            successful,
            error_message,
            host_interface_name: "tap0".into(),
            container_mac: "02:00:00:00:00:07".into(),
        })))
    }
}

impl UnaryService<DelRequest> for Fake {
    type Response = DelReply;
    type Future = Ready<Result<Response<DelReply>, Status>>;

    fn call(&mut self, request: Request<DelRequest>) -> Self::Future {
        self.deleted.lock().unwrap().push(request.into_inner());
        let (successful, error_message) = self.verdict();
        ready(Ok(Response::new(DelReply {
            successful,
            error_message,
        })))
    }
}

impl Service<http::Request<Body>> for Fake {
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
                    ServerGrpc::new(ProstCodec::<AddReply, AddRequest>::default())
                        .unary(fake, request)
                        .await
                }
                "/cni.CniDataplane/Del" => {
                    ServerGrpc::new(ProstCodec::<DelReply, DelRequest>::default())
                        .unary(fake, request)
                        .await
                }
                other => panic!("no method {other}"),
            })
        })
    }
}

impl NamedService for Fake {
    const NAME: &'static str = "cni.CniDataplane";
}

fn serving<F: Future<Output = ()>>(fake: &Fake, test: impl FnOnce(PathBuf) -> F) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dataplane.sock");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let listener = UnixListener::bind(&path).unwrap();
        let connections = futures::stream::unfold(listener, |listener| async {
            Some((listener.accept().await.map(|(stream, _)| stream), listener))
        });
        tokio::spawn(Server::builder().serve_with_incoming(fake.clone(), Box::pin(connections)));
        test(path).await;
    });
}

fn client(socket: &str) -> GrpcDataplane {
    let options = [("type", "grpc"), ("socket", socket), ("colour", "blue")];
    GrpcDataplane::new(
        socket,
        options.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
    )
    .unwrap()
}

fn unix(path: &Path) -> String {
    format!("unix://{}", path.display())
}

fn request() -> AddRequest {
    AddRequest {
        interface_name: "eth0".into(),
        netns: "/var/run/netns/pod1".into(),
        desired_host_interface_name: "cali1".into(),
        settings: Some(ContainerSettings {
            allow_ip_forwarding: true,
            mtu: 1400,
        }),
        container_ips: vec![IpConfig {
            address: "10.65.0.2/26".into(),
            gateway: NO_GATEWAY.into(),
        }],
        container_routes: vec!["0.0.0.0/0".into(), "::/0".into()],
        workload: Some(WorkloadIds {
            name: "node1-cni-c0ffee-eth0".into(),
            namespace: "default".into(),
            ports: vec![Port {
                name: "http".into(),
                protocol: "TCP".into(),
                port: 80,
                host_port: 8080,
                host_ip: "".into(),
            }],
            ..WorkloadIds::default()
        }),
        dataplane_options: BTreeMap::new(),
    }
}

#[test]
fn add_and_del_each_send_a_single_message_with_the_options() {
    let fake = Fake::new();
    serving(&fake, async |path| {
        let dataplane = client(&unix(&path));
        let reply = dataplane.add(request()).await.unwrap();
        assert_eq!(
            (
                reply.host_interface_name.as_str(),
                reply.container_mac.as_str()
            ),
            ("tap0", "02:00:00:00:00:07")
        );
        dataplane.del("eth0", "").await.unwrap();
    });
    let (added, deleted) = (fake.added.lock().unwrap(), fake.deleted.lock().unwrap());
    assert_eq!((added.len(), deleted.len()), (1, 1));
    assert_eq!(added[0].dataplane_options["colour"], "blue");
    assert_eq!(
        AddRequest {
            dataplane_options: BTreeMap::new(),
            ..added[0].clone()
        },
        request()
    );
    assert_eq!(
        (
            deleted[0].interface_name.as_str(),
            deleted[0].netns.as_str()
        ),
        ("eth0", "")
    );
    assert_eq!(deleted[0].dataplane_options, added[0].dataplane_options);
}

#[test]
fn unsuccessful_reply_is_an_error_with_its_text_and_a_retry_may_succeed() {
    let fake = Fake::new();
    serving(&fake, async |path| {
        let dataplane = client(&unix(&path));
        fake.refuse(Some("out of taps"));
        let error = dataplane.add(request()).await.unwrap_err();
        assert!(matches!(
            &error,
            GrpcError::Unsuccessful { method: "Add", message, .. } if message == "out of taps",
        ));
        assert_eq!(
            error.to_string(),
            format!("gRPC dataplane {}: Add failed: out of taps", unix(&path))
        );
        let error = dataplane.del("eth0", "/n").await.unwrap_err();
        assert!(
            matches!(&error, GrpcError::Unsuccessful { method: "Del", .. }),
            "{error:?}"
        );
        fake.refuse(None);
        dataplane.del("eth0", "/n").await.unwrap();
    });
    assert_eq!(fake.deleted.lock().unwrap().len(), 2);
}

#[test]
fn missing_grpc_socket_is_reported_as_a_call_error() {
    serving(&Fake::new(), async |path| {
        let absent = path.with_extension("absent");
        let error = client(&unix(&absent)).del("eth0", "/n").await.unwrap_err();
        assert!(
            matches!(&error, GrpcError::Call { method: "Del", .. }),
            "{error:?}"
        );
        assert!(
            error.to_string().contains("No such file or directory"),
            "{error}"
        );
    });
}

#[tokio::test(start_paused = true)]
async fn silent_grpc_server_times_out_after_five_seconds() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("silent.sock");
    // The kernel queues the connection; the test never accepts it.
    let _silent = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let begin = tokio::time::Instant::now();
    let error = client(&unix(&path)).add(request()).await.unwrap_err();
    assert!(
        matches!(
            &error,
            GrpcError::Call {
                method: "Add",
                was_sent: true,
                ..
            }
        ),
        "{error:?}"
    );
    assert_eq!(
        begin.elapsed().as_secs(),
        5,
        "by the clock that only timers advance: {error}"
    );
}

#[test]
fn grpc_targets_parse_as_in_grpc() {
    assert_eq!(target_uri("unix:///run/x.sock"), "unix:///run/x.sock");
    assert_eq!(target_uri("unix:x.sock"), "unix:x.sock");
    for target in [
        "127.0.0.1:5000",
        "passthrough:///127.0.0.1:5000",
        "dns:///127.0.0.1:5000",
        "dns:127.0.0.1:5000",
    ] {
        assert_eq!(target_uri(target), "http://127.0.0.1:5000", "{target}");
    }
    let error = GrpcDataplane::new("not a target", BTreeMap::new()).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("\"not a target\" is not a target such as"),
        "{error}"
    );
}

/// protoc encoded the expected bytes from the same values and field numbers (CNI-236).
#[test]
fn grpc_messages_encode_as_protoc_does() {
    let text = str::to_owned;
    let map = |key: &str, value: &str| BTreeMap::from([(text(key), text(value))]);
    let add = AddRequest {
        interface_name: text("a"),
        netns: text("b"),
        desired_host_interface_name: text("c"),
        settings: Some(ContainerSettings {
            allow_ip_forwarding: true,
            mtu: 1400,
        }),
        container_ips: vec![IpConfig {
            address: text("d"),
            gateway: text("e"),
        }],
        container_routes: vec![text("f"), text("g")],
        workload: Some(WorkloadIds {
            name: text("h"),
            namespace: text("i"),
            labels: map("j", "k"),
            annotations: map("l", "m"),
            endpoint: text("n"),
            node: text("o"),
            orchestrator: text("p"),
            pod: text("q"),
            ports: vec![Port {
                name: text("r"),
                protocol: text("s"),
                port: 80,
                host_port: 8080,
                host_ip: text("t"),
            }],
        }),
        dataplane_options: map("u", "v"),
    };
    assert_eq!(
        hex(&add),
        "0a01611201621a01632205080110f80a2a060a01641201653201663201673a320a01681201691a060a016a12016b22060a016c12016d\
         2a016e32016f3a01704201714a0e0a0172120173185020903f2a017442060a0175120176"
    );
    let del = DelRequest {
        interface_name: text("a"),
        netns: text("b"),
        dataplane_options: map("u", "v"),
    };
    assert_eq!(hex(&del), "0a01611201621a060a0175120176");
    let added = AddReply {
        successful: true,
        error_message: text("a"),
        host_interface_name: text("b"),
        container_mac: text("c"),
    };
    assert_eq!(hex(&added), "08011201611a0162220163");
    assert_eq!(
        hex(&DelReply {
            successful: true,
            error_message: text("a")
        }),
        "0801120161"
    );
}

fn hex(message: &impl Message) -> String {
    message
        .encode_to_vec()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
