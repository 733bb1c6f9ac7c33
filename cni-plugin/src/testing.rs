//! Doubles for tests: a clock that stands still, an API server in the process of the test that lives by this clock, and
//! calls that ask it.

use std::future::pending;
use std::path::Path;
use std::process::Command as Process;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use ipam_plugin::journal::Journal;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{spawn_blocking, yield_now};
use tokio::time::advance;

use crate::context::Context;

/// Set in the copy of a test that runs with an empty /run.
const WITH_EMPTY_RUN: &str = "CNI_PLUGIN_TESTS_WITH_EMPTY_RUN";
/// More turns of all tasks than any of them needs until it waits for the clock.
const TURNS_OF_A_SECOND: usize = 2000;

/// A clock that moves by `advance` alone: tokio lets time pass while all tasks wait, be it for the network, unless a
/// thread of its pool is at work.
pub(crate) struct Clock(#[expect(dead_code, reason = "the thread waits for its end")] mpsc::Sender<()>);

impl Clock {
    pub(crate) fn stop() -> Clock {
        let (end, ended) = mpsc::channel::<()>();
        spawn_blocking(move || ended.recv());
        Clock(end)
    }

    /// Lets second after second pass until `work` is done, each when all tasks wait for the clock.
    pub(crate) async fn run_until<T>(&self, work: impl Future<Output = T>) -> T {
        let running = async {
            loop {
                for _ in 0..TURNS_OF_A_SECOND {
                    yield_now().await;
                }
                advance(Duration::from_secs(1)).await;
            }
        };
        tokio::select! {
            biased;
            done = work => done,
            () = running => unreachable!("the clock runs for ever"),
        }
    }
}

/// Opens the context of a call for the pod shop/web on node1, whose datastore is `server`, with its own files.
pub(crate) fn context(command: &str, server: &ApiServer, files: &Path) -> Context {
    let conf = json!({
        "nodename_file_optional": true, "datastore_type": "kubernetes", "calico_api_group": "crd.projectcalico.org/v1",
        "kubernetes": { "k8s_api_root": server.url }, "ipam_lock_file": files.join("ipam.lock"),
    });
    open(command, "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web", conf, files)
}

/// Opens the context of a call on node1 with these CNI_ARGS and these keys of its configuration, with its own journal.
pub(crate) fn open(command: &str, args: &str, mut conf: Value, files: &Path) -> Context {
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
    for (key, value) in [("cniVersion", "1.0.0"), ("name", "net1"), ("type", "calico"), ("nodename", "node1")] {
        conf[key] = json!(value);
    }
    conf["ipam"] = json!({ "type": "calico-ipam" });
    let call = netconf::read_call(&env, || Ok(conf.to_string().into_bytes())).unwrap();
    let context = Context::open(Box::new(call), None).unwrap();
    Context { journal: Journal::new(files.join("journal")), ..context }
}

/// Returns true in a test that has an empty /run for itself. Otherwise runs the calling test again there, alone: calls
/// to a busy server take turns with all others of the node, by a file in /run.
pub(crate) fn has_empty_run() -> bool {
    if std::env::var_os(WITH_EMPTY_RUN).is_some() {
        return true;
    }
    let thread = std::thread::current();
    let test = thread.name().filter(|name| *name != "main").expect("without --test-threads=1");
    let script = r#"mount -t tmpfs tmpfs /run && exec "$0" "$@""#;
    let mut unshare = Process::new("unshare");
    unshare.args(["--map-root-user", "--mount", "sh", "-c", script]).arg(std::env::current_exe().unwrap());
    let outcome = unshare.args(["--exact", test, "--nocapture"]).env(WITH_EMPTY_RUN, "1").output().unwrap();
    let told = [outcome.stdout, outcome.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(outcome.status.success() && told[0].contains("1 passed"), "{told:#?}");
    false
}

/// The answer to a request.
pub(crate) struct Reply {
    /// The time that passes on the clock before it.
    pub(crate) after: Duration,
    /// The status. With 429 the server wants to be asked again in 7 s.
    pub(crate) status: u16,
    /// The object.
    pub(crate) body: Value,
}

/// Gives the answer to `METHOD PATH`; `None` for silence.
type Script = fn(&str) -> Option<Reply>;

/// A server that takes one request after the other from each connection.
pub(crate) struct ApiServer {
    /// Its URL.
    pub(crate) url: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl ApiServer {
    pub(crate) async fn start(script: Script) -> ApiServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = ApiServer { url, requests: Arc::default() };
        let requests = Arc::clone(&server.requests);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, script, Arc::clone(&requests)));
            }
        });
        server
    }

    /// Returns `METHOD PATH` of all requests so far.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

/// Answers until the client closes the connection.
async fn serve(stream: TcpStream, script: Script, requests: Arc<Mutex<Vec<String>>>) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    while let Some(request) = read(&mut stream).await? {
        requests.lock().unwrap().push(request.clone());
        let Some(Reply { after, status, body }) = script(&request) else { return pending().await };
        // By the second, so that whoever waits is woken at its time.
        for _ in 0..after.as_secs() {
            advance(Duration::from_secs(1)).await;
        }
        let body = body.to_string();
        let busy = if status == 429 { "retry-after: 7\r\n" } else { "" };
        let head = format!("HTTP/1.1 {status} Scripted\r\ncontent-type: application/json\r\n{busy}");
        stream.write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes()).await?;
    }
    Ok(())
}

/// Reads a request, and returns `METHOD PATH`.
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
