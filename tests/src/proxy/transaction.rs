//! The keys of an etcd transaction, read from its body: all transactions, reads included, have the
//! same path.

use std::fmt::Write;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;

/// The path of all transactions.
const PATH: &str = "/etcdserverpb.KV/Txn";
/// Length of the prefix of each gRPC message: a compression flag and the length.
const PREFIX: usize = 5;
/// Number of a transaction's field for a condition.
const COMPARE: u64 = 1;
/// Number of a condition's field for its key.
const KEY: u64 = 3;

pub(super) enum Asked {
    /// A body that the client is sending.
    Streamed(Incoming),
    /// A body that has been read.
    Read(Option<Bytes>),
}

/// Returns the body, and the query that describes it: `?if=<key>,<key>` with the keys of a
/// transaction's conditions. Reads the body of a request to an API server to its end: a client that
/// is stopped once its request has arrived would never send the rest. A stream of gRPC has no end.
pub(super) async fn described(head: &Parts, body: Incoming) -> (Asked, String) {
    let content = head.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let is_grpc = content.is_some_and(|content| content.starts_with(b"application/grpc"));
    let is_transaction = head.uri.path() == PATH;
    if body.is_end_stream() || (is_grpc && !is_transaction) {
        return (Asked::Streamed(body), String::new());
    }
    let bytes = whole(body).await;
    if !is_transaction {
        return (Asked::Read(Some(bytes)), String::new());
    }
    let mut words = String::new();
    for condition in
        fields(bytes.get(PREFIX..).unwrap_or_default()).filter(|field| field.0 == COMPARE)
    {
        let key = fields(condition.1)
            .find(|field| field.0 == KEY)
            .map(|field| String::from_utf8_lossy(field.1));
        let begin = if words.is_empty() { "?if=" } else { "," };
        let _ = write!(words, "{begin}{}", key.unwrap_or_default());
    }
    (Asked::Read(Some(bytes)), words)
}

/// Reads a body to its end or to the first error.
pub(super) async fn whole(mut body: Incoming) -> Bytes {
    let mut bytes = Vec::new();
    while let Some(Ok(frame)) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        bytes.extend(frame.into_data().unwrap_or_default());
    }
    bytes.into()
}

/// Returns number and bytes of each field up to the end or an error; a varint field has no bytes.
fn fields(mut message: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    std::iter::from_fn(move || {
        let tag = varint(&mut message)?;
        let length = match tag & 7 {
            0 => varint(&mut message).map(|_| 0)?,
            1 => 8,
            2 => varint(&mut message)?,
            _ => 4,
        };
        let (field, rest) = message.split_at_checked(length.try_into().ok()?)?;
        message = rest;
        Some((tag >> 3, field))
    })
}

fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = message.split_first()?;
        *message = rest;
        number |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

impl Body for Asked {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut *self {
            Asked::Streamed(body) => Pin::new(body).poll_frame(context),
            Asked::Read(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_a_protobuf_message_are_parsed_until_the_end_or_a_cut() {
        // A condition on `/a` at version 300, and an operation without meaning.
        let compare = [0x10, 0x00, 0x1a, 2, b'/', b'a', 0x20, 0xac, 0x02];
        let message = [&[0x0a, compare.len() as u8][..], &compare, &[0x12, 1, 7]].concat();
        let found: Vec<_> = fields(&message).collect();
        assert_eq!(found, [(1, &compare[..]), (2, &[7][..])]);
        assert_eq!(
            fields(&compare).find(|field| field.0 == KEY),
            Some((3, &b"/a"[..]))
        );
        assert_eq!(fields(&[0x0a, 9, 1]).count(), 0, "cut short");
    }
}
