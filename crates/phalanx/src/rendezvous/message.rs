//! Messages of a handshake: a head of fixed size, then at most [`MOST`] bytes.

use super::secret::{Nonce, Proof};
use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Most bytes of a message behind its head.
pub(super) const MOST: usize = 1024;
const MAGIC: [u8; 4] = *b"PHLX";
/// Of these messages.
const VERSION: u8 = 1;
const HEAD: usize = 8;

/// Kinds of messages.
pub(super) const CHALLENGE: u8 = 1;
pub(super) const HELLO: u8 = 2;
pub(super) const WELCOME: u8 = 3;
pub(super) const REFUSED: u8 = 4;

/// What is wrong with a connection or what came over it.
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
            Fault::Slow => write!(f, "no message came in time"),
            Fault::Io(reason) => write!(f, "{reason}"),
            Fault::Magic => write!(f, "what came is no message of a worker"),
            Fault::Version(v) => write!(f, "expected messages of version {VERSION}, received {v}"),
            Fault::Length(n) => {
                write!(f, "expected a message of {MOST} bytes or fewer, received {n}")
            }
            Fault::Kind(kind) => write!(f, "an unexpected message of kind {kind}"),
            Fault::Content => write!(f, "a message with something missing"),
        }
    }
}

/// A connection with a limit to every wait.
pub(super) struct Wire {
    pub stream: TcpStream,
    pub until: Instant,
}

impl Wire {
    fn left(&self) -> Result<Duration, Fault> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(Fault::Slow) } else { Ok(left) }
    }

    pub fn send(&mut self, kind: u8, body: &[u8]) -> Result<(), Fault> {
        let left = self.left()?;
        let mut message = MAGIC.to_vec();
        message.extend([VERSION, kind]);
        message.extend((body.len() as u16).to_le_bytes());
        message.extend(body);
        let sent = self.stream.set_write_timeout(Some(left));
        sent.and_then(|()| self.stream.write_all(&message)).map_err(fault)
    }

    /// The next message and its kind. A longer one than allowed is not read.
    pub fn receive(&mut self) -> Result<(u8, Vec<u8>), Fault> {
        let mut head = [0; HEAD];
        self.fill(&mut head)?;
        let [a, b, c, d, version, kind, low, high] = head;
        let len = usize::from(u16::from_le_bytes([low, high]));
        match () {
            () if [a, b, c, d] != MAGIC => Err(Fault::Magic),
            () if version != VERSION => Err(Fault::Version(version)),
            () if len > MOST => Err(Fault::Length(len)),
            () => {
                let mut body = vec![0; len];
                self.fill(&mut body)?;
                Ok((kind, body))
            }
        }
    }

    /// Reads so many bytes; whoever sends them one by one gains no time.
    fn fill(&mut self, mut to: &mut [u8]) -> Result<(), Fault> {
        while !to.is_empty() {
            let left = self.left()?;
            self.stream.set_read_timeout(Some(left)).map_err(fault)?;
            match self.stream.read(to) {
                Ok(0) => return Err(Fault::Closed),
                Ok(n) => to = &mut to[n..],
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(fault(e)),
            }
        }
        Ok(())
    }
}

fn fault(error: std::io::Error) -> Fault {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Fault::Slow,
        ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe => {
            Fault::Closed
        }
        _ => Fault::Io(error.to_string()),
    }
}

/// What a worker says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub rank: u32,
    pub size: u32,
    pub version: String,
    pub host: String,
}

impl Hello {
    /// As bytes, the nonce in front and the proof behind come on top.
    pub fn fields(&self) -> Vec<u8> {
        let mut fields = [self.rank.to_le_bytes(), self.size.to_le_bytes()].concat();
        text_into(&mut fields, &self.version);
        text_into(&mut fields, &self.host);
        fields
    }

    pub fn read(fields: &[u8]) -> Option<Hello> {
        let (rank, rest) = fields.split_first_chunk()?;
        let (size, rest) = rest.split_first_chunk()?;
        let (version, rest) = text(rest)?;
        let (host, rest) = text(rest)?;
        let (rank, size) = (u32::from_le_bytes(*rank), u32::from_le_bytes(*size));
        rest.is_empty().then_some(Hello { rank, size, version, host })
    }
}

/// Appends a text of at most 255 bytes, cut where it is longer.
pub(super) fn text_into(to: &mut Vec<u8>, text: &str) {
    let mut len = text.len().min(255);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    to.push(len as u8);
    to.extend(&text.as_bytes()[..len]);
}

/// A text and what follows it. Whatever could upset a terminal is left out.
pub(super) fn text(from: &[u8]) -> Option<(String, &[u8])> {
    let (len, rest) = from.split_first()?;
    let (bytes, rest) = rest.split_at_checked(usize::from(*len))?;
    let text = String::from_utf8_lossy(bytes);
    Some((text.chars().filter(|c| !c.is_control()).collect(), rest))
}

/// Nonce, fields and proof of a message.
pub(super) fn parts(body: &[u8]) -> Option<(&Nonce, &[u8], &Proof)> {
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
            Reason::Secret => "PHALANX_SECRET is another one there",
            Reason::Version => "its version is another one",
            Reason::Size => "it counts other workers",
            Reason::Rank => "there is no such rank",
            Reason::Taken => "another worker has come with the same rank",
        })
    }
}
