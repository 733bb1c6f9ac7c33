//! Test doubles: a clock that only the test advances, an API server that uses this clock, and
//! contexts of calls to this server.

use std::future::pending;
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use allocation::journal::{Journal, PendingDel};
use libcalico::variables::Variables;
use os::node_files::NodeFiles;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{spawn_blocking, yield_now};
use tokio::time::advance;

use crate::context::Context;
use crate::world::ThisNode;

/// The number of times that all tasks run before the clock advances. Every task waits for the clock
/// after fewer turns.
const YIELDS_PER_SECOND: usize = 2000;

/// A clock that only `advance` moves. tokio advances a paused clock when all tasks wait, even for
/// the network, unless a thread of the blocking pool is running.
pub(crate) struct Clock(
    #[expect(dead_code, reason = "the thread waits for its end")] mpsc::Sender<()>,
);

impl Clock {
    pub(crate) fn stop() -> Clock {
        let (end, ended) = mpsc::channel::<()>();
        spawn_blocking(move || ended.recv());
        Clock(end)
    }

    /// Advances the clock by one second whenever all tasks wait for it, until `work` is done.
    pub(crate) async fn run_until<T>(&self, work: impl Future<Output = T>) -> T {
        let running = async {
            loop {
                for turn in 0..YIELDS_PER_SECOND {
                    // A busy kernel delivers packets in a thread, which may need this processor.
                    if turn % 500 == 0 {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    yield_now().await;
                }
                advance(Duration::from_secs(1)).await;
            }
        };
        tokio::select! {
            biased;
            output = work => output,
            () = running => unreachable!("the clock runs for ever"),
        }
    }
}

/// Returns the context of a call for the pod shop/web on node1 with the datastore `server`.
pub(crate) fn context(command: &str, server: &ApiServer, files: &Path) -> Context<ThisNode> {
    let conf = json!({
        "nodename_file_optional": true, "datastore_type": "kubernetes",
        "calico_api_group": "crd.projectcalico.org/v1",
        "kubernetes": { "k8s_api_root": server.url }, "ipam_lock_file": files.join("ipam.lock"),
    });
    open(
        command,
        "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web",
        conf,
        files,
    )
}

/// Returns the context of a call on node1 with these CNI_ARGS and these configuration keys.
pub(crate) fn open(command: &str, args: &str, mut conf: Value, files: &Path) -> Context<ThisNode> {
    let env = |name: &str| {
        let value = match name {
            "CNI_COMMAND" => command,
            "CNI_CONTAINERID" => "c1",
            "CNI_IFNAME" => "eth0",
            "CNI_ARGS" => args,
            "CNI_NETNS" | "CNI_PATH" => "/no/such",
            _ => return None,
        };
        Some(value.to_owned())
    };
    for (key, value) in [
        ("cniVersion", "1.0.0"),
        ("name", "net1"),
        ("type", "calico"),
        ("nodename", "node1"),
    ] {
        conf[key] = json!(value);
    }
    conf["ipam"] = json!({ "type": "calico-ipam" });
    let call =
        netconf::read_call(Variables::new(&env), || Ok(conf.to_string().into_bytes())).unwrap();
    let context = Context::open(Box::new(call), NodeFiles::below(files), None).unwrap();
    Context {
        journal: Journal::new(files.join("journal")),
        ..context
    }
}

pub(crate) struct Reply {
    pub(crate) after: Duration,
    /// The status. A 429 has the header `retry-after: 7`.
    pub(crate) status: u16,
    pub(crate) body: Value,
}

/// A function that returns the reply to `METHOD PATH`; `None` for no reply.
type Script = fn(&str) -> Option<Reply>;

/// Answers at once for a cluster without pods. Forbids requests whose path contains `forbidden`.
pub(crate) fn without_pods(request: &str, forbidden: &str) -> Option<Reply> {
    let path = request.split([' ', '?']).nth(1)?;
    let name = path.rsplit('/').next()?;
    let object = |version: &str, kind: &str, spec: Value| {
        let metadata = json!({
            "name": name, "uid": "00000000-0000-0000-0000-000000000001", "resourceVersion": "7",
        });
        (
            200,
            json!({ "apiVersion": version, "kind": kind, "spec": spec, "metadata": metadata }),
        )
    };
    let refused = |code: u16, reason: &str| {
        let details = json!({ "name": name });
        let status = json!({
            "kind": "Status", "status": "Failure", "reason": reason, "code": code,
            "details": details,
        });
        (code, status)
    };
    let (status, body) = match path {
        _ if path.contains(forbidden) => refused(403, "Forbidden"),
        _ if path.ends_with("/clusterinformations/default") => object(
            "crd.projectcalico.org/v1",
            "ClusterInformation",
            json!({ "datastoreReady": true }),
        ),
        "/api/v1/namespaces/kube-system" => object("v1", "Namespace", json!({})),
        _ => refused(404, "NotFound"),
    };
    Some(Reply {
        after: Duration::ZERO,
        status,
        body,
    })
}

/// Records a deferred DEL of a pod that the API server no longer has.
pub(crate) fn record_del_of_a_gone_pod(cx: &Context<ThisNode>) {
    let pending_del = PendingDel {
        network: "net1".into(),
        container_id: "c9".into(),
        ifname: "eth0".into(),
        node: "node1".into(),
        datastore: cx.datastore_name(),
        endpoint: ("shop".into(), "node1-k8s-gone-eth0".into()),
        ..PendingDel::default()
    };
    cx.journal.record(&pending_del).unwrap();
}

/// An HTTP server that handles the requests of each connection in order.
pub(crate) struct ApiServer {
    pub(crate) url: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl ApiServer {
    pub(crate) async fn start(script: Script) -> ApiServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = ApiServer {
            url,
            requests: Arc::default(),
        };
        let requests = Arc::clone(&server.requests);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, script, Arc::clone(&requests)));
            }
        });
        server
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

async fn serve(
    stream: TcpStream,
    script: Script,
    requests: Arc<Mutex<Vec<String>>>,
) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    while let Some(request) = read(&mut stream).await? {
        requests.lock().unwrap().push(request.clone());
        let Some(Reply {
            after,
            status,
            body,
        }) = script(&request)
        else {
            return pending().await;
        };
        // Steps of one second, so that other tasks wake up at the right time.
        for _ in 0..after.as_secs() {
            advance(Duration::from_secs(1)).await;
        }
        let body = body.to_string();
        let busy = if status == 429 {
            "retry-after: 7\r\n"
        } else {
            ""
        };
        let head =
            format!("HTTP/1.1 {status} Scripted\r\ncontent-type: application/json\r\n{busy}");
        stream
            .write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes())
            .await?;
    }
    Ok(())
}

/// Reads a request, and returns `METHOD PATH`; `None` at the end of the connection.
async fn read(stream: &mut BufReader<TcpStream>) -> std::io::Result<Option<String>> {
    let (mut request, mut length) = (None, 0);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        if line.trim_end().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        request.get_or_insert_with(|| line.split(' ').take(2).collect::<Vec<_>>().join(" "));
    }
    stream.read_exact(&mut vec![0; length]).await?;
    Ok(request)
}
