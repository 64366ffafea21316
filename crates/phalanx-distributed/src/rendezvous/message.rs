//! Messages of the handshake: a header of fixed size, then at most [`MAX_BODY_BYTES`] bytes.

use super::secret::{Nonce, Proof};
use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The maximum size of a message after its header.
pub(super) const MAX_BODY_BYTES: usize = 1024;
const MAGIC: [u8; 4] = *b"PHLX";
/// The version of the message format.
const VERSION: u8 = 1;
const HEADER_BYTES: usize = 8;

/// Kinds of messages.
pub(super) const CHALLENGE: u8 = 1;
pub(super) const HELLO: u8 = 2;
pub(super) const WELCOME: u8 = 3;
pub(super) const REFUSED: u8 = 4;

/// An error of a connection or of a received message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Closed,
    Slow,
    Io(String),
    Magic,
    Version(u8),
    Length(usize),
    Kind(u8),
    Content,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Closed => write!(f, "the connection was closed"),
            Fault::Slow => write!(f, "no message arrived in time"),
            Fault::Io(reason) => write!(f, "{reason}"),
            Fault::Magic => write!(f, "received something other than a message of a worker"),
            Fault::Version(v) => write!(f, "expected messages of version {VERSION}, received {v}"),
            Fault::Length(n) => {
                write!(f, "expected a message of {MAX_BODY_BYTES} bytes or fewer, received {n}")
            }
            Fault::Kind(kind) => write!(f, "an unexpected message of kind {kind}"),
            Fault::Content => write!(f, "an incomplete message"),
        }
    }
}

/// A connection with a deadline for all reads and writes.
pub(super) struct Wire {
    pub stream: TcpStream,
    pub deadline: Instant,
}

impl Wire {
    fn remaining(&self) -> Result<Duration, Fault> {
        let remaining = self.deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() { Err(Fault::Slow) } else { Ok(remaining) }
    }

    pub fn send(&mut self, kind: u8, body: &[u8]) -> Result<(), Fault> {
        let remaining = self.remaining()?;
        let mut message = MAGIC.to_vec();
        message.extend([VERSION, kind]);
        message.extend((body.len() as u16).to_le_bytes());
        message.extend(body);
        let sent = self.stream.set_write_timeout(Some(remaining));
        sent.and_then(|()| self.stream.write_all(&message)).map_err(io_fault)
    }

    /// Receives the next message and its kind. The body of a message that is too long is not read.
    pub fn receive(&mut self) -> Result<(u8, Vec<u8>), Fault> {
        let mut header = [0; HEADER_BYTES];
        self.fill(&mut header)?;
        let [a, b, c, d, version, kind, low, high] = header;
        let len = usize::from(u16::from_le_bytes([low, high]));
        match () {
            () if [a, b, c, d] != MAGIC => Err(Fault::Magic),
            () if version != VERSION => Err(Fault::Version(version)),
            () if len > MAX_BODY_BYTES => Err(Fault::Length(len)),
            () => {
                let mut body = vec![0; len];
                self.fill(&mut body)?;
                Ok((kind, body))
            }
        }
    }

    /// Fills `to`. The deadline covers the whole read, so sending byte by byte does not extend it.
    fn fill(&mut self, mut to: &mut [u8]) -> Result<(), Fault> {
        while !to.is_empty() {
            let remaining = self.remaining()?;
            self.stream.set_read_timeout(Some(remaining)).map_err(io_fault)?;
            match self.stream.read(to) {
                Ok(0) => return Err(Fault::Closed),
                Ok(n) => to = &mut to[n..],
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(io_fault(e)),
            }
        }
        Ok(())
    }
}

fn io_fault(error: std::io::Error) -> Fault {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Fault::Slow,
        ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe => {
            Fault::Closed
        }
        _ => Fault::Io(error.to_string()),
    }
}

/// What a worker sends about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub rank: u32,
    pub size: u32,
    pub version: String,
    pub host: String,
}

impl Hello {
    /// Serialises the fields, without the nonce before them and the proof after them.
    pub fn fields(&self) -> Vec<u8> {
        let mut fields = [self.rank.to_le_bytes(), self.size.to_le_bytes()].concat();
        push_text(&mut fields, &self.version);
        push_text(&mut fields, &self.host);
        fields
    }

    pub fn read(fields: &[u8]) -> Option<Hello> {
        let (rank, rest) = fields.split_first_chunk()?;
        let (size, rest) = rest.split_first_chunk()?;
        let (version, rest) = read_text(rest)?;
        let (host, rest) = read_text(rest)?;
        let (rank, size) = (u32::from_le_bytes(*rank), u32::from_le_bytes(*size));
        rest.is_empty().then_some(Hello { rank, size, version, host })
    }
}

/// Appends a string of at most 255 bytes; a longer one is truncated.
pub(super) fn push_text(to: &mut Vec<u8>, text: &str) {
    let mut len = text.len().min(255);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    to.push(len as u8);
    to.extend(&text.as_bytes()[..len]);
}

/// Reads a string and returns it with the remaining bytes. Control characters, which could upset a terminal,
/// are removed.
pub(super) fn read_text(from: &[u8]) -> Option<(String, &[u8])> {
    let (len, rest) = from.split_first()?;
    let (bytes, rest) = rest.split_at_checked(usize::from(*len))?;
    let text = String::from_utf8_lossy(bytes);
    Some((text.chars().filter(|c| !c.is_control()).collect(), rest))
}

/// Splits a message into nonce, fields and proof.
pub(super) fn split_message(body: &[u8]) -> Option<(&Nonce, &[u8], &Proof)> {
    let (nonce, rest) = body.split_first_chunk()?;
    let (fields, proof) = rest.split_last_chunk()?;
    Some((nonce, fields, proof))
}

/// Why a worker is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    Secret = 1,
    Version,
    Size,
    Rank,
    Taken,
}

impl Reason {
    pub fn read(body: &[u8]) -> Option<Reason> {
        let all = [Reason::Secret, Reason::Version, Reason::Size, Reason::Rank, Reason::Taken];
        all.into_iter().find(|reason| body == [*reason as u8])
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Secret => "PHALANX_SECRET differs",
            Reason::Version => "its version differs",
            Reason::Size => "its number of workers differs",
            Reason::Rank => "there is no such rank",
            Reason::Taken => "another worker has already joined with the same rank",
        })
    }
}
