//! A dataplane behind gRPC (`dataplane_options.type` `grpc`): the client of service `cni.CniDataplane`.
//!
//! The one asynchronous part of the dataplane, and no part of the kernel's: interface, addresses and routes are the server's
//! work.

pub mod wire;

use std::collections::BTreeMap;
use std::time::Duration;

use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{ConnectError, Request, Status};
use tonic_prost::ProstCodec;

use wire::{AddReply, AddRequest, DelReply, DelRequest};

/// Every call's deadline, as upstream (CNI-235).
const DEADLINE: Duration = Duration::from_secs(5);

const ADD: &str = "/cni.CniDataplane/Add";
const DEL: &str = "/cni.CniDataplane/Del";

/// Why the gRPC dataplane could not be used.
#[derive(Debug, thiserror::Error)]
pub enum GrpcError {
    /// `dataplane_options.socket` names no server.
    #[error(
        "gRPC dataplane: {target:?} is not a target such as unix:///run/dataplane.sock or 127.0.0.1:5000: {reason}"
    )]
    Target {
        /// `dataplane_options.socket`.
        target: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The call did not come to an answer.
    #[error("gRPC dataplane {target}: {method}: {reason}")]
    Call {
        /// `dataplane_options.socket`.
        target: String,
        /// `Add` or `Del`.
        method: &'static str,
        /// The status: its code and message.
        reason: String,
        /// False if there was no connection to the server.
        was_sent: bool,
    },
    /// The server answered that it did not succeed.
    #[error("gRPC dataplane {target}: {method} failed: {message}")]
    Unsuccessful {
        /// `dataplane_options.socket`.
        target: String,
        /// `Add` or `Del`.
        method: &'static str,
        /// The server's reason.
        message: String,
    },
}

impl GrpcError {
    /// Returns true if the server may have carried out the call.
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(self, GrpcError::Call { was_sent: true, .. })
    }
}

/// A connection to a gRPC dataplane, made at the first call.
#[derive(Debug, Clone)]
pub struct GrpcDataplane {
    channel: Channel,
    target: String,
    options: BTreeMap<String, String>,
}

impl GrpcDataplane {
    /// `socket` is a gRPC target without encryption: `unix:///path`, `unix:path`, `dns:///host:port` or `host:port`.
    /// `options` are the text entries of `dataplane_options`, which the server gets with each call (CNI-234).
    ///
    /// Must be called from within a tokio runtime.
    pub fn new(socket: &str, options: BTreeMap<String, String>) -> Result<Self, GrpcError> {
        let bad = |reason: String| GrpcError::Target { target: socket.to_owned(), reason };
        let endpoint = Endpoint::from_shared(uri(socket)).map_err(|error| bad(causes(&error)))?;
        Ok(GrpcDataplane { channel: endpoint.connect_lazy(), target: socket.to_owned(), options })
    }

    /// Has the server make the endpoint's network, and returns the interface it made.
    pub async fn add(&self, request: AddRequest) -> Result<AddReply, GrpcError> {
        let request = AddRequest { dataplane_options: self.options.clone(), ..request };
        let reply: AddReply = self.call("Add", ADD, request).await?;
        self.successful("Add", reply.successful, &reply.error_message)?;
        Ok(reply)
    }

    /// Has the server take the endpoint's network away. `netns` is empty when CNI_NETNS is. That a second call succeeds is
    /// the server's duty (CNI-238).
    pub async fn del(&self, interface_name: &str, netns: &str) -> Result<(), GrpcError> {
        let request = DelRequest {
            interface_name: interface_name.to_owned(),
            netns: netns.to_owned(),
            dataplane_options: self.options.clone(),
        };
        let reply: DelReply = self.call("Del", DEL, request).await?;
        self.successful("Del", reply.successful, &reply.error_message)
    }

    async fn call<Q, A>(&self, method: &'static str, path: &'static str, message: Q) -> Result<A, GrpcError>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let failed = |(reason, was_sent)| GrpcError::Call { target: self.target.clone(), method, reason, was_sent };
        let mut request = Request::new(message);
        request.set_timeout(DEADLINE);
        let mut client = Grpc::new(self.channel.clone());
        let exchange = async {
            client.ready().await.map_err(|error| (causes(&error), false))?;
            let codec = ProstCodec::<Q, A>::default();
            let answer = client.unary(request, PathAndQuery::from_static(path), codec).await;
            let answer = answer.map(tonic::Response::into_inner);
            answer.map_err(|status| (describe(&status), !is_without_connection(&status)))
        };
        match tokio::time::timeout(DEADLINE, exchange).await {
            Ok(outcome) => outcome.map_err(failed),
            Err(_) => Err(failed((format!("no answer within {} s", DEADLINE.as_secs()), true))),
        }
    }

    fn successful(&self, method: &'static str, successful: bool, message: &str) -> Result<(), GrpcError> {
        if successful {
            return Ok(());
        }
        Err(GrpcError::Unsuccessful { target: self.target.clone(), method, message: message.to_owned() })
    }
}

/// The address form of a gRPC target; `passthrough` is upstream's default scheme.
fn uri(target: &str) -> String {
    if target.starts_with("unix:") {
        return target.to_owned();
    }
    let address =
        ["passthrough:///", "dns:///", "passthrough:", "dns:"].iter().find_map(|scheme| target.strip_prefix(scheme));
    format!("http://{}", address.unwrap_or(target))
}

/// Returns true if there was no connection by which the call could have been sent.
fn is_without_connection(status: &Status) -> bool {
    let first = std::error::Error::source(status);
    std::iter::successors(first, |error| error.source()).any(|error| error.is::<ConnectError>())
}

fn describe(status: &Status) -> String {
    format!("{}: {}", status.code(), causes(status))
}

/// An error and what caused it: tonic's own text for a server that is not there is `transport error`.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests;
