//! The client of a gRPC dataplane (`dataplane_options.type` `grpc`), service `cni.CniDataplane`.
//! The server creates the network of an endpoint instead of the kernel's dataplane.

pub mod wire;

use std::collections::BTreeMap;
use std::time::Duration;

use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{ConnectError, Request, Status};
use tonic_prost::ProstCodec;

use wire::{AddReply, AddRequest, DelReply, DelRequest};

/// The deadline of every call, the same as upstream's.
const DEADLINE: Duration = Duration::from_secs(5);

const ADD: &str = "/cni.CniDataplane/Add";
const DEL: &str = "/cni.CniDataplane/Del";

/// A failure to use the gRPC dataplane.
#[derive(Debug, thiserror::Error)]
pub enum GrpcError {
    /// `dataplane_options.socket` is not a valid target.
    #[error(
        "gRPC dataplane: {target:?} is not a target such as unix:///run/dataplane.sock or \
         127.0.0.1:5000: {reason}"
    )]
    Target {
        /// `dataplane_options.socket`.
        target: String,
        /// The cause.
        reason: String,
    },
    /// The call failed without a reply message.
    #[error("gRPC dataplane {target}: {method}: {reason}")]
    Call {
        /// `dataplane_options.socket`.
        target: String,
        /// `Add` or `Del`.
        method: &'static str,
        /// The cause, for example the code and message of the gRPC status.
        reason: String,
        /// True if the call may have been sent; false if there was no connection to send the call
        /// on.
        was_sent: bool,
    },
    /// The server responded with a failure.
    #[error("gRPC dataplane {target}: {method} failed: {message}")]
    Unsuccessful {
        /// `dataplane_options.socket`.
        target: String,
        /// `Add` or `Del`.
        method: &'static str,
        /// The error message of the server.
        message: String,
    },
}

impl GrpcError {
    /// Returns true if the server may have carried out the call.
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(self, GrpcError::Call { was_sent: true, .. })
    }
}

/// A connection to a gRPC dataplane. The first call establishes it.
#[derive(Debug, Clone)]
pub struct GrpcDataplane {
    channel: Channel,
    target: String,
    options: BTreeMap<String, String>,
}

impl GrpcDataplane {
    /// Returns a client. `socket` is a gRPC target without encryption, such as `unix:///path` or
    /// `host:port`. `options` are the string entries of `dataplane_options`. Must be called from
    /// within a tokio runtime.
    pub fn new(socket: &str, options: BTreeMap<String, String>) -> Result<Self, GrpcError> {
        let invalid = |reason: String| GrpcError::Target {
            target: socket.to_owned(),
            reason,
        };
        let endpoint = Endpoint::from_shared(target_uri(socket))
            .map_err(|error| invalid(error_chain(&error)))?;
        Ok(GrpcDataplane {
            channel: endpoint.connect_lazy(),
            target: socket.to_owned(),
            options,
        })
    }

    /// Calls the server to create the network of an endpoint, and returns the interface that the
    /// server created.
    pub async fn add(&self, request: AddRequest) -> Result<AddReply, GrpcError> {
        let request = AddRequest {
            dataplane_options: self.options.clone(),
            ..request
        };
        let reply: AddReply = self.call("Add", ADD, request).await?;
        self.ensure_successful("Add", reply.successful, &reply.error_message)?;
        Ok(reply)
    }

    /// Calls the server to remove the network of an endpoint. `netns` is empty if CNI_NETNS is. The
    /// server has to accept repeated calls (CNI-238).
    pub async fn del(&self, interface_name: &str, netns: &str) -> Result<(), GrpcError> {
        let (interface_name, netns) = (interface_name.to_owned(), netns.to_owned());
        let request = DelRequest {
            interface_name,
            netns,
            dataplane_options: self.options.clone(),
        };
        let reply: DelReply = self.call("Del", DEL, request).await?;
        self.ensure_successful("Del", reply.successful, &reply.error_message)
    }

    async fn call<Q, A>(
        &self,
        method: &'static str,
        path: &'static str,
        message: Q,
    ) -> Result<A, GrpcError>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let failed = |(reason, was_sent)| GrpcError::Call {
            target: self.target.clone(),
            method,
            reason,
            was_sent,
        };
        let mut request = Request::new(message);
        request.set_timeout(DEADLINE);
        let mut client = Grpc::new(self.channel.clone());
        let exchange = async {
            client
                .ready()
                .await
                .map_err(|error| (error_chain(&error), false))?;
            let codec = ProstCodec::<Q, A>::default();
            let answer = client
                .unary(request, PathAndQuery::from_static(path), codec)
                .await;
            let answer = answer.map(tonic::Response::into_inner);
            answer.map_err(|status| {
                (
                    format!("{}: {}", status.code(), error_chain(&status)),
                    !is_without_connection(&status),
                )
            })
        };
        match tokio::time::timeout(DEADLINE, exchange).await {
            Ok(outcome) => outcome.map_err(failed),
            Err(_) => Err(failed((
                format!("no answer within {} s", DEADLINE.as_secs()),
                true,
            ))),
        }
    }

    fn ensure_successful(
        &self,
        method: &'static str,
        successful: bool,
        message: &str,
    ) -> Result<(), GrpcError> {
        if successful {
            return Ok(());
        }
        Err(GrpcError::Unsuccessful {
            target: self.target.clone(),
            method,
            message: message.to_owned(),
        })
    }
}

/// Returns the URI for a gRPC target. `passthrough` is the default scheme of upstream.
fn target_uri(target: &str) -> String {
    if target.starts_with("unix:") {
        return target.to_owned();
    }
    let address = ["passthrough:///", "dns:///", "passthrough:", "dns:"]
        .iter()
        .find_map(|scheme| target.strip_prefix(scheme));
    format!("http://{}", address.unwrap_or(target))
}

fn is_without_connection(status: &Status) -> bool {
    let first = std::error::Error::source(status);
    std::iter::successors(first, |error| error.source()).any(|error| error.is::<ConnectError>())
}

/// Returns the texts of an error and its causes. The text of tonic alone is `transport error` for
/// an unreachable server.
fn error_chain(error: &dyn std::error::Error) -> String {
    let texts =
        std::iter::successors(error.source(), |cause| cause.source()).map(ToString::to_string);
    texts.fold(error.to_string(), |text, next| {
        if text.contains(&next) {
            text
        } else {
            format!("{text}: {next}")
        }
    })
}

#[cfg(test)]
mod tests;
