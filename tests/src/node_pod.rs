//! The DaemonSet's pod on a node: a [`Container`] with the service account that the kubelet mounts,
//! and the commands of `calico` that run in it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::clock::{self, Ahead};
use crate::controllers::{PATIENCE, await_that};
use crate::installation::{Container, NET, SERVICE_ACCOUNT};
use crate::kubernetes::{ApiServer, Client, Identity, ServiceAccount};
use crate::namespaces::Host;
use crate::plugin::{Call, Plugins};
use crate::server_process::ServerProcess;

/// The namespace of Calico's objects.
pub const NAMESPACE: &str = "kube-system";

/// The service account of the pod.
pub const POD_ACCOUNT: &str = "calico-node";

/// Port of the agent inside the private host, unless CNI_AGENT_LISTEN has another.
pub const AGENT_PORT: u16 = 9097;

/// The pod.
#[derive(Debug)]
pub struct NodePod {
    /// Its files.
    pub container: Container,
    /// Its service account.
    pub account: ServiceAccount,
    plugins: Plugins,
    environment: BTreeMap<String, String>,
    generation: usize,
}

/// `calico refresh-token`, running or ended. Killed on drop.
#[derive(Debug)]
pub struct Agent {
    process: ServerProcess,
    log: PathBuf,
    port: u16,
}

/// An HTTP response of the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// HTTP status.
    pub code: u16,
    /// Body as text.
    pub body: String,
}

impl NodePod {
    /// Creates a pod that reaches the API server by `url`. Its account has no permissions yet.
    pub fn new(host: &Host, api: &ApiServer, url: &str) -> Result<NodePod> {
        let container = Container::new(host, "node-pod")?;
        let account = api.service_account(NAMESPACE, POD_ACCOUNT)?;
        let address = url
            .strip_prefix("https://")
            .context("a URL of the API server")?;
        let (server, port) = address
            .rsplit_once(':')
            .context("a port of the API server")?;
        // Kubernetes sets an IPv6 address without brackets.
        let server = server.trim_matches(['[', ']']);
        let environment = [
            ("KUBERNETES_SERVICE_HOST", server),
            ("KUBERNETES_SERVICE_PORT", port),
        ];
        let environment = environment
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        let mut pod = NodePod {
            container,
            account,
            plugins: Plugins::locate()?,
            environment,
            generation: 0,
        };
        let Identity::Token(token) = pod.account.identity.clone() else {
            anyhow::bail!("an account has a token")
        };
        pod.mount(&token, &api.authority_certificate())?;
        Ok(pod)
    }

    /// Sets an environment variable for processes started from now on.
    pub fn set(&mut self, name: &str, value: impl Into<String>) {
        self.environment.insert(name.into(), value.into());
    }

    /// Replaces the mounted service account as the kubelet does: renames one symbolic link over
    /// another.
    pub fn mount(&mut self, token: &str, authority: &str) -> Result<()> {
        let mount = self.container.path(SERVICE_ACCOUNT);
        self.generation += 1;
        let generation = format!("..generation-{}", self.generation);
        let content = mount.join(&generation);
        fs::create_dir_all(&content)?;
        for (name, text) in [
            ("token", token),
            ("ca.crt", authority),
            ("namespace", NAMESPACE),
        ] {
            fs::write(content.join(name), text)?;
            if !mount.join(name).exists() {
                symlink(Path::new("..data").join(name), mount.join(name))?;
            }
        }
        symlink(&generation, mount.join("..data_tmp"))?;
        Ok(fs::rename(mount.join("..data_tmp"), mount.join("..data"))?)
    }

    /// Returns the path of the plugins' kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.container.path(NET).join("calico-kubeconfig")
    }

    /// Reads the token in the plugins' kubeconfig.
    pub fn token(&self) -> Result<String> {
        let text = fs::read_to_string(self.kubeconfig())?;
        let parsed: Value = serde_norway::from_str(&text)?;
        Ok(parsed["users"][0]["user"]["token"]
            .as_str()
            .context("a kubeconfig has a token")?
            .to_owned())
    }

    /// Returns a client with the token in the plugins' kubeconfig.
    pub fn client(&self, api: &ApiServer) -> Result<Client> {
        api.client(&Identity::Token(self.token()?))
    }

    /// Prepares a call `calico <words>`. Only `health` has no option `--root`.
    pub fn calico(&self, words: &[&str]) -> Call {
        let mut call = self.plugins.call("calico").args(words.iter().copied());
        if words.first() != Some(&"health") {
            call = call.args(["--root".to_owned(), self.root()]);
        }
        self.environment
            .iter()
            .fold(call, |call, (name, value)| call.env(name, value.clone()))
    }

    /// Starts `calico refresh-token` by the command line of upstream's component commands.
    pub fn agent(&self) -> Result<Agent> {
        self.agent_under("")
    }

    /// Starts [`NodePod::agent`] by another program, such as `setpriv …`.
    pub fn agent_under(&self, wrapper: &str) -> Result<Agent> {
        self.start(wrapper, &["component", "cni", "agent"])
    }

    /// Starts `calico install`, which continues as the agent unless SLEEP is false.
    pub fn installer_that_stays(&self) -> Result<Agent> {
        self.start("", &["install"])
    }

    fn start(&self, wrapper: &str, command: &[&str]) -> Result<Agent> {
        let listen = self
            .environment
            .get("CNI_AGENT_LISTEN")
            .map_or("", String::as_str);
        let port = listen
            .rsplit_once(':')
            .and_then(|(_, port)| port.parse().ok())
            .unwrap_or(AGENT_PORT);
        let log = self.container.path(&format!("agent-{port}.log"));
        let mut agent = Agent {
            process: ServerProcess::default(),
            log,
            port,
        };
        // `env -i` gives the process no other variables.
        let mut words = vec!["-i".to_owned()];
        words.extend(
            self.environment
                .iter()
                .map(|(name, text)| format!("{name}={text}")),
        );
        words.extend(wrapper.split_whitespace().map(str::to_owned));
        words.push(self.plugins.dir().join("calico").display().to_string());
        words.extend(
            command
                .iter()
                .chain(&["--root"])
                .map(|&word| word.to_owned()),
        );
        words.push(self.root());
        agent
            .process
            .start(Path::new("/usr/bin/env"), &words, &agent.log)?;
        Ok(agent)
    }
}

impl NodePod {
    fn root(&self) -> String {
        self.container.path("").display().to_string()
    }
}

impl Agent {
    /// Reads the log.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until the log contains `text`.
    pub fn await_log(&self, text: &str) -> Result<()> {
        await_that(PATIENCE, || Ok(self.log().contains(text)))
            .with_context(|| format!("no `{text}`: {}", self.log()))
    }

    /// Requests a page.
    pub fn page(&self, path: &str) -> Result<Page> {
        self.page_at("127.0.0.1", path)
    }

    /// Requests a page at an address of the host.
    pub fn page_at(&self, address: &str, path: &str) -> Result<Page> {
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .build()
            .into();
        let mut answer = agent
            .get(format!("http://{address}:{}{path}", self.port))
            .call()?;
        Ok(Page {
            code: answer.status().as_u16(),
            body: answer.body_mut().read_to_string()?,
        })
    }

    /// Sets the clocks of this process alone.
    pub fn set_clocks(&self, ahead: Ahead) -> Result<()> {
        let pid = self.process.pid().context("the agent runs")?;
        self.while_frozen(|| clock::set(pid, ahead))
    }

    /// Runs `change` while the process is stopped, so that the process sees all of the change at
    /// once.
    pub fn while_frozen(&self, change: impl FnOnce() -> Result<()>) -> Result<()> {
        self.process.freeze()?;
        let changed = change();
        self.process.thaw()?;
        changed
    }

    /// Waits until a page has a status code.
    pub fn await_page(&self, path: &str, code: u16) -> Result<Page> {
        let mut last = None;
        let seen = await_that(PATIENCE, || {
            last = self.page(path).ok();
            Ok(last.as_ref().is_some_and(|page| page.code == code))
        });
        seen.with_context(|| format!("{path} is {last:?}: {}", self.log()))?;
        last.context("a page was seen")
    }

    /// Waits until the agent is unready for a reason with all of these words.
    pub fn await_reason(&self, words: &[&str]) -> Result<()> {
        let mut last = None;
        let seen = await_that(PATIENCE, || {
            last = self.page("/readiness").ok();
            Ok(last.as_ref().is_some_and(|page| {
                page.code == 503 && words.iter().all(|word| page.body.contains(word))
            }))
        });
        seen.with_context(|| format!("/readiness is {last:?}, without {words:?}: {}", self.log()))
    }

    /// Reads a metric; `name` is without the prefix `calico_cni_`.
    pub fn metric(&self, name: &str) -> Result<i64> {
        let page = self.page("/metrics")?;
        let value = page
            .body
            .lines()
            .find_map(|line| line.strip_prefix(&format!("calico_cni_{name} ")));
        Ok(value
            .with_context(|| format!("no {name}: {}", page.body))?
            .parse()?)
    }

    /// Waits until a metric is at least this value.
    pub fn await_metric(&self, name: &str, at_least: i64) -> Result<()> {
        let seen = await_that(PATIENCE, || {
            Ok(self.metric(name).is_ok_and(|value| value >= at_least))
        });
        seen.with_context(|| format!("{name} is {:?}: {}", self.metric(name), self.log()))
    }

    /// Sends SIGTERM and waits for the exit.
    pub fn terminate(&mut self) -> Result<ExitStatus> {
        self.process.terminate()?;
        self.await_exit()
    }

    /// Waits for the exit.
    pub fn await_exit(&mut self) -> Result<ExitStatus> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.process.ended() {
                return Ok(status);
            }
            ensure!(Instant::now() < deadline, "it still runs: {}", self.log());
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Allows an account, usually that of the pod, to create tokens of another one, with the rule that
/// upstream grants it.
pub fn may_make_tokens(api: &ApiServer, account: &ServiceAccount, of: &str) -> Result<()> {
    let rules = json!([
        {
            "apiGroups": [""], "resources": ["serviceaccounts/token"], "resourceNames": [of],
            "verbs": ["create"],
        },
        // The harness waits for a rule without resourceNames.
        { "apiGroups": [""], "resources": ["nodes"], "verbs": ["get"] },
    ]);
    api.cluster_role("calico-cni-tokens", &rules)?;
    api.bind(account, "calico-cni-tokens")
}
