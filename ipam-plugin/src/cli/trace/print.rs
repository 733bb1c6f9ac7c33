//! [`Trace`]: the data found about a pod, and its text.

use std::io::Write;
use std::path::PathBuf;

use netconf::printable;
use serde::Serialize;

use super::stored::{Address, Endpoint};
use crate::cli::error::CliError;
use crate::host_link::HostLink;

/// The data found about a pod.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Trace {
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) node: String,
    pub(super) endpoint: Option<Endpoint>,
    pub(super) addresses: Vec<Address>,
    /// Name of the host's end of the pod's interface.
    pub(super) interface_name: String,
    pub(super) interface: Option<HostLink>,
    pub(super) log_file: PathBuf,
    pub(super) log: Vec<String>,
    /// Number of earlier lines that are not shown.
    pub(super) log_left_out: usize,
    /// Parts that could not be read.
    pub(super) missing: Vec<Missing>,
}

/// A part that could not be read.
#[derive(Debug, Serialize)]
pub(super) struct Missing {
    pub(super) part: &'static str,
    pub(super) reason: String,
}

impl Trace {
    pub(super) fn print(&self, out: &mut dyn Write) -> Result<(), CliError> {
        let mut say = |line: String| writeln!(out, "{}", printable::line(&line)).map_err(CliError::Output);
        say(format!("Pod {}/{} on node {}", self.namespace, self.pod, self.node))?;
        for missing in &self.missing {
            say(format!("Not looked at: {}: {}", missing.part, missing.reason))?;
        }
        match &self.endpoint {
            None => say("Endpoint: none".into())?,
            Some(endpoint) => {
                say(format!("Endpoint: {}", endpoint.name))?;
                say(format!("  container {}", endpoint.container_id))?;
                say(format!("  networks {}", endpoint.networks.join(", ")))?;
                say(format!("  interface {}", endpoint.interface))?;
            }
        }
        say(if self.addresses.is_empty() { "Addresses: none" } else { "Addresses:" }.into())?;
        for address in &self.addresses {
            let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "<none>".into());
            let (handle, pool, since) = (or_none(&address.handle), or_none(&address.pool), or_none(&address.since));
            let (ip, block, node) = (address.address, address.block, or_none(&address.node));
            say(format!("  {ip} of block {block}, pool {pool}, handle {handle}, node {node}, since {since}"))?;
        }
        match &self.interface {
            None => say(format!("Interface: none ({} is not there)", self.interface_name))?,
            Some(link) => print_link(link, &mut say)?,
        }
        say(format!("Log: {} lines of {}", self.log.len(), self.log_file.display()))?;
        if self.log_left_out > 0 {
            say(format!("  {} earlier lines are left out, see --lines", self.log_left_out))?;
        }
        self.log.iter().try_for_each(|line| say(format!("  {line}")))
    }
}

fn print_link(link: &HostLink, say: &mut impl FnMut(String) -> Result<(), CliError>) -> Result<(), CliError> {
    let state = match (link.up, link.carrier) {
        (true, true) => "up",
        (true, false) => "up without carrier",
        (false, _) => "down",
    };
    say(format!("Interface: {}, number {}, {state}, MTU {}, MAC {}", link.name, link.index, link.mtu, link.mac))?;
    match &link.container_id {
        Some(id) => say(format!("  of container {id}"))?,
        None => say("  no container is noted on it".into())?,
    }
    if link.routes.is_empty() {
        return say("Routes: none".into());
    }
    say("Routes:".into())?;
    link.routes.iter().try_for_each(|route| say(format!("  {route}")))
}
