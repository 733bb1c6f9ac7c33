//! An API server with the responses that an ADD needs. It generates blocks while it sends them.

use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread;

use serde_json::{Value, json};

/// The number of blocks in a pool of `/11`. In a larger cluster there is a second pool.
const IN_FIRST_POOL: usize = 1 << 15;
const OWN: usize = 2;
const ADDRESSES: usize = 64;

/// The cluster, and the requests so far.
pub(super) struct State {
    blocks: usize,
    /// Whether to page lists, with pages of the requested size.
    pages: bool,
    pub(super) ready: bool,
    pub(super) pools: usize,
    /// `METHOD path?query` of each request.
    pub(super) requests: Vec<String>,
    /// Bytes of responses, headers included.
    pub(super) bytes: usize,
}

#[derive(Clone)]
pub(super) struct Server {
    pub(super) state: Arc<Mutex<State>>,
    pub(super) url: String,
}

impl State {
    /// Returns the number of attributes in each block: one in a very large cluster, whose list must
    /// end in time, within the ten seconds of a request.
    fn attributes(&self) -> usize {
        if self.blocks > IN_FIRST_POOL {
            1
        } else {
            ADDRESSES
        }
    }
}

impl Server {
    /// Serves `blocks` full blocks of 64 addresses, the first two of which belong to `node1`.
    pub(super) fn start(blocks: usize, pages: bool) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = State {
            blocks,
            pages,
            ready: true,
            pools: 1,
            requests: Vec::new(),
            bytes: 0,
        };
        let server = Server {
            state: Arc::new(Mutex::new(state)),
            url,
        };
        let serving = server.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let server = serving.clone();
                // The connection of an exiting plugin breaks, so the error is ignored.
                thread::spawn(move || drop(server.serve(stream)));
            }
        });
        server
    }

    pub(super) fn reset(&self) {
        let mut state = self.state.lock().unwrap();
        (state.requests, state.bytes) = (Vec::new(), 0);
    }

    pub(super) fn count(&self, part: &str) -> usize {
        self.state
            .lock()
            .unwrap()
            .requests
            .iter()
            .filter(|request| request.contains(part))
            .count()
    }

    fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        let mut lines = BufReader::new(stream.try_clone()?);
        let mut out = Counted {
            out: BufWriter::with_capacity(1 << 16, stream),
            bytes: 0,
        };
        loop {
            let Some((request, metadata_only, length)) = head(&mut lines)? else {
                return Ok(());
            };
            std::io::copy(&mut (&mut lines).take(length), &mut std::io::sink())?;
            self.state.lock().unwrap().requests.push(request.clone());
            self.answer(&request, metadata_only, &mut out)?;
            out.out.flush()?;
            self.state.lock().unwrap().bytes += std::mem::take(&mut out.bytes);
        }
    }

    fn answer(&self, request: &str, metadata_only: bool, out: &mut Counted) -> std::io::Result<()> {
        let (method, target) = request.split_once(' ').unwrap_or_default();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let Some(object) = self.object(path, metadata_only).filter(|_| method == "GET") else {
            let name = path.rsplit('/').next().unwrap_or_default();
            if method == "GET" && path.ends_with("/ipamblocks") {
                return self.blocks(query, metadata_only, out);
            }
            let (code, body) = match method {
                "GET" => (
                    404,
                    json!({
                        "kind": "Status", "reason": "NotFound", "code": 404,
                        "details": {"name": name},
                    }),
                ),
                // A handle that an ADD creates ahead of its reads.
                "POST" => (
                    201,
                    json!({
                        "kind": "PartialObjectMetadata",
                        "metadata": {"name": "h", "resourceVersion": "7"},
                    }),
                ),
                _ => (200, json!({"kind": "Status", "status": "Success"})),
            };
            return out.whole(code, &body);
        };
        out.whole(200, &object)
    }

    /// Returns the object or the short list at a path; `None` for another path.
    fn object(&self, path: &str, metadata_only: bool) -> Option<Value> {
        let state = self.state.lock().unwrap();
        let metadata = |name: &str| {
            json!({
                "name": name, "uid": "00000000-0000-4000-8000-000000000001", "resourceVersion": "1",
            })
        };
        let list = |kind: &str, items: Vec<Value>| {
            Some(json!({"kind": kind, "metadata": {"resourceVersion": "9"}, "items": items}))
        };
        let (parent, name) = path.rsplit_once('/')?;
        match (parent.rsplit('/').next()?, name) {
            (_, "ippools") => {
                let cidrs = if state.blocks > IN_FIRST_POOL {
                    vec!["10.0.0.0/11", "10.32.0.0/13"]
                } else {
                    vec!["10.0.0.0/15"]
                };
                let pool = |(number, cidr): (usize, &&str)| {
                    let mut metadata = metadata(&format!("pool{number}"));
                    metadata["resourceVersion"] = state.pools.to_string().into();
                    json!({
                        "kind": "IPPool", "metadata": metadata,
                        "spec": {"cidr": cidr, "blockSize": 26},
                    })
                };
                list("IPPoolList", cidrs.iter().enumerate().map(pool).collect())
            }
            (_, "ipreservations") => list("IPReservationList", Vec::new()),
            (_, "blockaffinities") => {
                let claim = |number: usize| {
                    let metadata = metadata(&format!("node1-{}", name_of(number)));
                    let (cidr, deleted) = (cidr(number), "false");
                    let spec = json!({
                        "cidr": cidr, "node": "node1", "type": "host", "state": "confirmed",
                        "deleted": deleted,
                    });
                    json!({"kind": "BlockAffinity", "metadata": metadata, "spec": spec})
                };
                list("BlockAffinityList", (0..OWN).map(claim).collect())
            }
            ("clusterinformations", "default") => {
                let spec = json!({"datastoreReady": state.ready, "clusterType": "k8s,kdd"});
                Some(json!({
                    "kind": "ClusterInformation", "metadata": metadata("default"), "spec": spec,
                }))
            }
            ("nodes", "node1") => Some(
                json!({"kind": "Node", "metadata": metadata("node1"), "spec": {}, "status": {}}),
            ),
            ("namespaces", name) => Some(json!({"kind": "Namespace", "metadata": metadata(name)})),
            ("pods", name) => {
                let mut metadata = metadata(name);
                metadata["namespace"] = "default".into();
                let spec = json!({"nodeName": "node1", "containers": [{"name": "c"}]});
                metadata["annotations"] = json!({"example.com/large": "x".repeat(8000)});
                Some(json!({"kind": "Pod", "metadata": metadata, "spec": spec, "status": {}}))
            }
            ("ipamblocks", name) => {
                let number = (0..state.blocks).find(|number| name_of(*number) == name)?;
                let object = block(number, state.attributes(), metadata_only);
                Some(serde_json::from_str(&object).unwrap())
            }
            _ => None,
        }
    }

    fn blocks(&self, query: &str, metadata_only: bool, out: &mut Counted) -> std::io::Result<()> {
        let (blocks, attributes, pages) = {
            let state = self.state.lock().unwrap();
            (state.blocks, state.attributes(), state.pages)
        };
        let parameter = |name: &str| {
            let value = query
                .split('&')
                .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
            value.and_then(|value| value.parse::<usize>().ok())
        };
        let begin = parameter("continue").unwrap_or(0);
        let end = parameter("limit")
            .filter(|_| pages)
            .map_or(blocks, |limit| (begin + limit).min(blocks));
        let kind = if metadata_only {
            "PartialObjectMetadataList"
        } else {
            "IPAMBlockList"
        };
        let next = if end < blocks {
            end.to_string()
        } else {
            String::new()
        };
        out.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")?;
        out.chunk(&format!(r#"{{"kind":"{kind}","metadata":{{"resourceVersion":"9","continue":"{next}"}},"items":["#))?;
        for number in begin..end {
            let separator = if number > begin { "," } else { "" };
            out.chunk(&format!(
                "{separator}{}",
                block(number, attributes, metadata_only)
            ))?;
        }
        out.chunk("]}\n")?;
        out.write_all(b"0\r\n\r\n")
    }
}

fn cidr(number: usize) -> String {
    format!(
        "10.{}.{}.{}/26",
        number >> 10,
        number >> 2 & 255,
        (number & 3) << 6
    )
}

fn name_of(number: usize) -> String {
    cidr(number).replace(['.', '/'], "-")
}

/// Returns a full block as JSON. With 64 attributes a whole block is 17 KiB long, as upstream's
/// blocks are.
fn block(number: usize, attributes: usize, metadata_only: bool) -> String {
    let metadata = format!(
        r#""metadata":{{"name":"{}","uid":"00000000-0000-4000-8000-{number:012}","resourceVersion":"5"}}"#,
        name_of(number)
    );
    if metadata_only {
        return format!(r#"{{"kind":"PartialObjectMetadata",{metadata}}}"#);
    }
    let all = if attributes == ADDRESSES {
        &LONG
    } else {
        &SHORT
    };
    let [before, middle, after] = &all[usize::from(number >= OWN)];
    [before.as_str(), &metadata, middle, &cidr(number), after].concat()
}

/// Blocks without their metadata and CIDR: of the requesting node, and of another node.
static LONG: LazyLock<[[String; 3]; 2]> =
    LazyLock::new(|| ["node1", "node2"].map(|owner| parts(owner, ADDRESSES)));

/// As [`LONG`], but all addresses share one entry of `attributes` and have no sequence numbers.
static SHORT: LazyLock<[[String; 3]; 2]> =
    LazyLock::new(|| ["node1", "node2"].map(|owner| parts(owner, 1)));

/// Returns the parts of a full block before, between and after its metadata and its CIDR.
fn parts(owner: &str, attributes: usize) -> [String; 3] {
    let attribute = |place: usize| {
        format!(
            concat!(
                r#"{{"handle_id":"k8s-pod-network.{:064x}","secondary":"#,
                r#"{{"namespace":"default","node":"{}","pod":"web-6d4cf56db6-00000-{:05}","#,
                r#""timestamp":"2026-08-22 01:02:03.123456789 +0000 UTC"}}}}"#
            ),
            place, owner, place
        )
    };
    let places = (0..ADDRESSES)
        .map(|place| (place % attributes).to_string())
        .collect::<Vec<_>>()
        .join(",");
    let numbered = if attributes == 1 { 0 } else { ADDRESSES };
    let sequence = (0..numbered)
        .map(|place| format!(r#""{place}":1787360523123400000"#))
        .collect::<Vec<_>>()
        .join(",");
    let attributes = (0..attributes).map(attribute).collect::<Vec<_>>().join(",");
    [
        r#"{"kind":"IPAMBlock","#.to_owned(),
        format!(
            concat!(
                r#","spec":{{"affinity":"host:{}","affinityClaimTime":"2026-08-22T01:02:03Z","#,
                r#""allocations":[{}],"attributes":[{}],"cidr":""#
            ),
            owner, places, attributes
        ),
        format!(
            concat!(
                r#"","deleted":false,"sequenceNumber":1787360523123400064,"#,
                r#""sequenceNumberForAllocation":{{{}}},"strictAffinity":false,"unallocated":[]}}}}"#
            ),
            sequence
        ),
    ]
}

/// Reads method and target of a request, whether it is for metadata only, and the length of the
/// body; `None` if the client has closed the connection.
fn head(lines: &mut impl BufRead) -> std::io::Result<Option<(String, bool, u64)>> {
    let (mut request, mut metadata_only, mut length) = (String::new(), false, 0);
    loop {
        let mut line = String::new();
        if lines.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let line = line.trim_end();
        if line.is_empty() {
            return Ok(Some((request, metadata_only, length)));
        }
        if request.is_empty() {
            request = line.trim_end_matches(" HTTP/1.1").to_owned();
            continue;
        }
        let (name, value) = line.split_once(':').unwrap_or_default();
        match name.to_ascii_lowercase().as_str() {
            "accept" => metadata_only = value.contains("PartialObjectMetadata"),
            "content-length" => length = value.trim().parse().unwrap_or(0),
            _ => {}
        }
    }
}

/// A connection that counts the bytes written.
struct Counted {
    out: BufWriter<TcpStream>,
    bytes: usize,
}

impl Counted {
    fn write_all(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.bytes += bytes.len();
        self.out.write_all(bytes)
    }

    fn chunk(&mut self, text: &str) -> std::io::Result<()> {
        self.write_all(format!("{:x}\r\n", text.len()).as_bytes())?;
        self.write_all(text.as_bytes())?;
        self.write_all(b"\r\n")
    }

    fn whole(&mut self, code: u16, body: &Value) -> std::io::Result<()> {
        let body = body.to_string();
        let head = format!(
            "HTTP/1.1 {code} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        self.write_all(head.as_bytes())?;
        self.write_all(body.as_bytes())
    }
}
