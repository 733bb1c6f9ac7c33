//! A real etcd for one private host, on the endpoint of the recordings, and a raw client for its
//! content.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use crate::command::present;
use crate::namespaces::Host;
use crate::server_process::ServerProcess;

/// Endpoint of etcd inside the private host.
pub const ENDPOINT: &str = "http://127.0.0.1:2379";

/// Reason for which tests are skipped without etcd.
pub const REQUIRES: &str = "etcd is not installed (Debian: etcd-server)";

/// Key prefix of an API server's objects, not all of which are JSON.
const REGISTRY: &str = "/registry/";

/// A single-member etcd. Killed on drop; its data disappear with the host's tmpfs.
#[derive(Debug)]
pub struct Etcd {
    data: PathBuf,
    args: Vec<String>,
    server: ServerProcess,
}

impl Etcd {
    /// Returns true if the server is installed.
    pub fn installed() -> bool {
        present("etcd")
    }

    /// Starts an empty server and waits until it responds.
    pub fn start(host: &Host) -> Result<Etcd> {
        Self::start_with(host, &[])
    }

    /// Starts a server as [`Etcd::start`] does, with more arguments (TLS, authentication).
    pub fn start_with(host: &Host, args: &[&str]) -> Result<Etcd> {
        let args = args.iter().map(|&a| a.to_owned()).collect();
        let mut etcd = Etcd {
            data: host.dir("etcd"),
            args,
            server: ServerProcess::default(),
        };
        etcd.restart()?;
        Ok(etcd)
    }

    /// Returns the etcd of the control plane that runs on this host, without its process, which can
    /// be neither stopped nor started again.
    pub fn of_control_plane(host: &Host) -> Etcd {
        Etcd {
            data: host.dir("etcd"),
            args: Vec::new(),
            server: ServerProcess::default(),
        }
    }

    /// Starts the server again on the same data.
    pub fn restart(&mut self) -> Result<()> {
        let data = self.data.display().to_string();
        let fixed = [
            "--log-level",
            "warn",
            "--data-dir",
            &data,
            "--listen-peer-urls",
            "http://127.0.0.1:2380",
        ];
        let urls = [
            "--advertise-client-urls",
            ENDPOINT,
            "--listen-client-urls",
            ENDPOINT,
        ];
        let args: Vec<String> = fixed
            .into_iter()
            .chain(urls)
            .map(str::to_owned)
            .chain(self.args.clone())
            .collect();
        self.server
            .start("etcd".as_ref(), &args, &self.data.with_extension("log"))?;
        self.await_answer()
    }

    /// Starts the server again on the same data, with more arguments.
    pub fn restart_with(&mut self, args: &[String]) -> Result<()> {
        self.args.extend_from_slice(args);
        self.restart()
    }

    /// Kills the server and keeps its data.
    pub fn stop(&mut self) {
        self.server.stop();
    }

    /// Returns the process ID of the running server.
    pub fn pid(&self) -> Option<u32> {
        self.server.pid()
    }

    /// Freezes the server until [`Etcd::thaw`]: it accepts connections and does not respond.
    pub fn freeze(&self) -> Result<()> {
        self.server.freeze()
    }

    /// Continues a frozen server.
    pub fn thaw(&self) -> Result<()> {
        self.server.thaw()
    }

    fn await_answer(&mut self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(60);
        while let Err(error) = self.dump_raw() {
            if let Some(status) = self.server.ended() {
                let log =
                    std::fs::read_to_string(self.data.with_extension("log")).unwrap_or_default();
                bail!("etcd ended ({status}): {log}");
            }
            if Instant::now() > deadline {
                return Err(error.context("etcd does not answer"));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Runs etcdctl against this server and returns its output.
    pub fn ctl(&self, args: &[&str]) -> Result<String> {
        let words: Vec<&str> = ["ETCDCTL_API=3", "etcdctl", "--endpoints", ENDPOINT]
            .into_iter()
            .chain(args.iter().copied())
            .collect();
        crate::command::run("env", &words)
    }

    /// Writes every pair.
    pub fn load(&self, content: &BTreeMap<String, Value>) -> Result<()> {
        for (key, value) in content {
            self.put(key, value.to_string().as_bytes())?;
        }
        Ok(())
    }

    /// Writes one raw value.
    pub fn put(&self, key: &str, value: &[u8]) -> Result<()> {
        post(
            "kv/put",
            &json!({ "key": BASE64.encode(key), "value": BASE64.encode(value) }),
        )
        .map(|_| ())
    }

    /// Deletes one key.
    pub fn delete(&self, key: &str) -> Result<()> {
        post("kv/deleterange", &json!({ "key": BASE64.encode(key) })).map(|_| ())
    }

    /// Raises an alarm, such as `NOSPACE`, as a member does.
    pub fn raise_alarm(&self, alarm: &str) -> Result<()> {
        post(
            "maintenance/alarm",
            &json!({ "action": "ACTIVATE", "alarm": alarm }),
        )
        .map(|_| ())
    }

    /// Compacts the whole history: only the present revision can still be read.
    pub fn compact(&self) -> Result<()> {
        let answer = post("kv/range", &json!({ "key": BASE64.encode("/") }))?;
        post(
            "kv/compaction",
            &json!({ "revision": answer["header"]["revision"], "physical": true }),
        )
        .map(|_| ())
    }

    /// Reads the revision of the last write of each key below a prefix.
    pub fn revisions(&self, prefix: &str) -> Result<BTreeMap<String, u64>> {
        let question = json!({
            "key": BASE64.encode(prefix), "range_end": end_of(prefix)?, "keys_only": true,
        });
        let answer = post("kv/range", &question)?;
        let pairs = answer["kvs"].as_array().map_or(&[][..], Vec::as_slice);
        // The gateway encodes 64-bit numbers as strings.
        let revision = |kv: &Value| {
            kv["mod_revision"]
                .as_str()
                .and_then(|text| text.parse().ok())
        };
        let pair = |kv: &Value| {
            Ok((
                String::from_utf8(bytes(&kv["key"])?)?,
                revision(kv).context("no mod_revision")?,
            ))
        };
        pairs.iter().map(pair).collect()
    }

    /// Reads every pair below a prefix, with values as raw bytes.
    pub(crate) fn dump_below(&self, prefix: &str) -> Result<BTreeMap<String, Vec<u8>>> {
        let answer = post(
            "kv/range",
            &json!({ "key": BASE64.encode(prefix), "range_end": end_of(prefix)? }),
        )?;
        pairs(&answer)
    }

    /// Reads every pair, with values as raw bytes.
    pub fn dump_raw(&self) -> Result<BTreeMap<String, Vec<u8>>> {
        // A key and a range end of one zero byte select all keys.
        let all = BASE64.encode([0]);
        let answer = post("kv/range", &json!({ "key": all, "range_end": all }))?;
        pairs(&answer)
    }

    /// Reads every pair except those of an API server, with parsed values.
    pub fn dump(&self) -> Result<BTreeMap<String, Value>> {
        let parse = |(key, value): (String, Vec<u8>)| {
            let value =
                serde_json::from_slice(&value).with_context(|| format!("{key} holds no JSON"))?;
            Ok((key, value))
        };
        self.dump_raw()?
            .into_iter()
            .filter(|(key, _)| !key.starts_with(REGISTRY))
            .map(parse)
            .collect()
    }
}

/// Returns the end of the range of a prefix: the prefix with its last byte incremented, encoded.
fn end_of(prefix: &str) -> Result<String> {
    let mut end = prefix.as_bytes().to_vec();
    *end.last_mut().context("an empty prefix")? += 1;
    Ok(BASE64.encode(end))
}

/// Returns the pairs in the response to a range request.
fn pairs(answer: &Value) -> Result<BTreeMap<String, Vec<u8>>> {
    let pairs = answer["kvs"].as_array().map_or(&[][..], Vec::as_slice);
    pairs
        .iter()
        .map(|kv| Ok((String::from_utf8(bytes(&kv["key"])?)?, bytes(&kv["value"])?)))
        .collect()
}

fn post(method: &str, body: &Value) -> Result<Value> {
    let url = format!("{ENDPOINT}/v3/{method}");
    let agent = ureq::Agent::config_builder()
        .timeout_global(Some(Duration::from_secs(60)))
        .proxy(None)
        .build();
    let mut answer = ureq::Agent::from(agent)
        .post(&url)
        .send_json(body)
        .with_context(|| url.clone())?;
    answer.body_mut().read_json().with_context(|| url)
}

/// Decodes a base64 field; the gateway omits empty fields.
fn bytes(field: &Value) -> Result<Vec<u8>> {
    Ok(BASE64.decode(field.as_str().unwrap_or_default())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespaces::isolated;
    use crate::skip::skipped;

    #[test]
    fn content_survives_a_restart_of_etcd_and_two_servers_share_none() {
        if !Etcd::installed() {
            return skipped(REQUIRES);
        }
        isolated(|host| {
            let mut etcd = Etcd::start(host).unwrap();
            let content = BTreeMap::from([("/calico/a".to_owned(), json!({"n": 1}))]);
            etcd.load(&content).unwrap();
            assert_eq!(etcd.dump().unwrap(), content);
            etcd.stop();
            assert!(etcd.dump().is_err());
            etcd.restart().unwrap();
            assert_eq!(etcd.dump().unwrap(), content);

            isolated(|other| {
                let other = Etcd::start(other).unwrap();
                assert!(other.dump().unwrap().is_empty());
            });
            etcd.delete("/calico/a").unwrap();
            assert!(etcd.dump().unwrap().is_empty());
        });
    }
}
