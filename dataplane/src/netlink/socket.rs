use std::io;
use std::time::{Duration, Instant};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;
use nix::libc::{MSG_DONTWAIT, MSG_TRUNC};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::AsFd;

use super::NetlinkError;
use super::error::extended_ack_text;

/// The size of the receive buffer: the largest datagram that the kernel builds for a dump.
const RECEIVE_BUFFER: usize = 32 * 1024;

const DUMP_ATTEMPTS: usize = 10;

/// A request, and the step of the operation that it performs, for error messages.
#[derive(Debug)]
pub(crate) struct Request {
    step: String,
    message: RouteNetlinkMessage,
    flags: u16,
}

/// The kernel's answer to one request: the requested object, or `None` for a command that
/// succeeded.
pub(crate) type Answer = Result<Option<RouteNetlinkMessage>, NetlinkError>;

/// A socket in the network namespace in which it was opened, whatever the namespace of the thread
/// that uses it.
pub(crate) struct NetlinkSocket {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Request {
    pub(crate) fn new(step: impl Into<String>, message: RouteNetlinkMessage, flags: u16) -> Self {
        Request {
            step: step.into(),
            message,
            flags: flags | NLM_F_REQUEST,
        }
    }
}

impl NetlinkSocket {
    /// Opens a socket in the namespace of the calling thread.
    pub(crate) fn open() -> Result<Self, NetlinkError> {
        let socket = Socket::new(NETLINK_ROUTE).map_err(|e| failed("open", e))?;
        // Failures are ignored: a kernel without these options only reports errors with other
        // details.
        let _ = socket.set_ext_ack(true);
        let _ = socket.set_cap_ack(true);
        Ok(NetlinkSocket {
            socket,
            sequence: 0,
            buffer: Vec::with_capacity(RECEIVE_BUFFER),
        })
    }

    pub(crate) fn open_for_events(group: u32) -> Result<Self, NetlinkError> {
        let mut opened = NetlinkSocket::open()?;
        opened.socket.bind_auto().map_err(|e| failed("bind", e))?;
        opened
            .socket
            .add_membership(group)
            .map_err(|e| failed("subscribe", e))?;
        Ok(opened)
    }

    /// Sends all requests at once and returns one answer for each, in the same order. The kernel
    /// continues after a request that it rejects.
    pub(crate) fn exchange(&mut self, requests: Vec<Request>) -> Result<Vec<Answer>, NetlinkError> {
        let Some(last) = requests.len().checked_sub(1) else {
            return Ok(Vec::new());
        };
        let first_sequence = self.sequence.wrapping_add(1);
        let mut outgoing = Vec::with_capacity(1024);
        let mut steps = Vec::with_capacity(requests.len());
        for (position, request) in requests.into_iter().enumerate() {
            // The kernel always reports a rejected request. Only the last request asks for an
            // acknowledgement, which ends the exchange.
            let flags = if position == last {
                request.flags | NLM_F_ACK
            } else {
                request.flags
            };
            self.append(&mut outgoing, request.message, flags);
            steps.push(request.step);
        }
        self.send(&outgoing)?;

        let mut answers: Vec<Answer> = steps.iter().map(|_| Ok(None)).collect();
        loop {
            for message in self.receive(&steps[0], 0)? {
                let position = message.header.sequence_number.wrapping_sub(first_sequence) as usize;
                let Some(step) = steps.get(position) else {
                    continue;
                };
                match message.payload {
                    NetlinkPayload::InnerMessage(object) => answers[position] = Ok(Some(object)),
                    NetlinkPayload::Error(error) => {
                        if error.code.is_some() {
                            let detail = extended_ack_text(&message.header, &error.header);
                            let errno = Errno::from_raw(error.raw_code().wrapping_neg());
                            answers[position] = Err(NetlinkError::Refused {
                                step: step.clone(),
                                errno,
                                detail,
                            });
                        }
                        if position == last {
                            return Ok(answers);
                        }
                    }
                    _ => {}
                }
            }
        }
    }

    pub(crate) fn exchange_one(&mut self, request: Request) -> Answer {
        self.exchange(vec![request])?.pop().unwrap_or(Ok(None))
    }

    /// Returns all objects that `request` selects. The kernel filters them (strict checking).
    /// Kernels before 4.20 do not, so callers must filter, too.
    pub(crate) fn dump(
        &mut self,
        request: &Request,
    ) -> Result<Vec<RouteNetlinkMessage>, NetlinkError> {
        let _ = self.socket.set_netlink_get_strict_chk(true);
        for _ in 0..DUMP_ATTEMPTS {
            if let Some(objects) = self.dump_once(request)? {
                return Ok(objects);
            }
        }
        Err(NetlinkError::DumpInterrupted(request.step.clone()))
    }

    /// Returns the objects, or `None` if the table changed during the dump.
    fn dump_once(
        &mut self,
        request: &Request,
    ) -> Result<Option<Vec<RouteNetlinkMessage>>, NetlinkError> {
        let mut outgoing = Vec::with_capacity(128);
        self.append(
            &mut outgoing,
            request.message.clone(),
            request.flags | NLM_F_DUMP,
        );
        let sequence = self.sequence;
        self.send(&outgoing)?;
        let (mut objects, mut is_interrupted) = (Vec::new(), false);
        loop {
            for message in self.receive(&request.step, 0)? {
                if message.header.sequence_number != sequence {
                    continue;
                }
                is_interrupted |= message.header.flags & NLM_F_DUMP_INTR != 0;
                let code = match message.payload {
                    NetlinkPayload::InnerMessage(object) => {
                        objects.push(object);
                        continue;
                    }
                    NetlinkPayload::Done(done) => done.code,
                    NetlinkPayload::Error(error) => error.raw_code(),
                    _ => continue,
                };
                return match code.wrapping_neg() {
                    0 => Ok((!is_interrupted).then_some(objects)),
                    errno => {
                        let (step, errno) = (request.step.clone(), Errno::from_raw(errno));
                        Err(NetlinkError::Refused {
                            step,
                            errno,
                            detail: None,
                        })
                    }
                };
            }
        }
    }

    /// Waits for events, and returns the first value that `pick` extracts from one. Returns `None`
    /// if there is none until `deadline`.
    pub(crate) fn wait_for<T>(
        &mut self,
        step: &str,
        deadline: Instant,
        mut pick: impl FnMut(RouteNetlinkMessage) -> Option<T>,
    ) -> Result<Option<T>, NetlinkError> {
        loop {
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() || !self.wait_readable(remaining)? {
                return Ok(None);
            }
            for message in self.receive(step, MSG_DONTWAIT)? {
                if let NetlinkPayload::InnerMessage(object) = message.payload
                    && let Some(found) = pick(object)
                {
                    return Ok(Some(found));
                }
            }
        }
    }

    fn wait_readable(&self, within: Duration) -> Result<bool, NetlinkError> {
        // Round up: a wait of 0 ms would spin until the deadline.
        let milliseconds = within.as_millis().saturating_add(1);
        let timeout = PollTimeout::try_from(milliseconds).unwrap_or(PollTimeout::MAX);
        match poll(
            &mut [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)],
            timeout,
        ) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::EINTR) => Ok(true),
            Err(errno) => Err(failed("wait on", errno.into())),
        }
    }

    fn append(&mut self, outgoing: &mut Vec<u8>, message: RouteNetlinkMessage, flags: u16) {
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = NetlinkMessage::from(message);
        message.header.flags = flags;
        message.header.sequence_number = self.sequence;
        message.finalize();
        let start = outgoing.len();
        outgoing.resize(start + message.buffer_len().next_multiple_of(4), 0);
        message.serialize(&mut outgoing[start..]);
    }

    fn send(&self, outgoing: &[u8]) -> Result<(), NetlinkError> {
        let kernel = SocketAddr::new(0, 0);
        self.socket
            .send_to(outgoing, &kernel, 0)
            .map_err(|e| failed("write to", e))?;
        Ok(())
    }

    /// Receives the messages of one datagram. A non-blocking receive may return none.
    fn receive(
        &mut self,
        step: &str,
        flags: i32,
    ) -> Result<Vec<NetlinkMessage<RouteNetlinkMessage>>, NetlinkError> {
        loop {
            self.buffer.clear();
            match self.socket.recv_from(&mut self.buffer, flags | MSG_TRUNC) {
                // Only the kernel has port 0. Any process with CAP_NET_ADMIN can write to this
                // socket, and such messages are ignored.
                Ok((_, sender)) if sender.port_number() != 0 => {}
                Ok((length, _)) if length > self.buffer.len() => {
                    let reason = format!("{length} bytes do not fit into {RECEIVE_BUFFER}");
                    return Err(NetlinkError::Malformed {
                        step: step.to_owned(),
                        reason,
                    });
                }
                Ok(_) => return parse(&self.buffer, step),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Vec::new()),
                Err(error) => return Err(failed("read from", error)),
            }
        }
    }
}

fn parse(
    mut datagram: &[u8],
    step: &str,
) -> Result<Vec<NetlinkMessage<RouteNetlinkMessage>>, NetlinkError> {
    let malformed = |reason: String| NetlinkError::Malformed {
        step: step.to_owned(),
        reason,
    };
    let mut messages = Vec::new();
    while !datagram.is_empty() {
        let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(datagram)
            .map_err(|e| malformed(e.to_string()))?;
        let length = (message.header.length as usize).next_multiple_of(4);
        messages.push(message);
        // The padding of the last message may be missing.
        datagram = datagram.get(length..).unwrap_or_default();
    }
    Ok(messages)
}

fn failed(action: &'static str, source: io::Error) -> NetlinkError {
    NetlinkError::Socket { action, source }
}
