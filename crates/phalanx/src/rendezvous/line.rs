//! Connections that stay open: one that closes tells who is gone.

use std::io::ErrorKind;
use std::net::TcpStream;

/// The connections of a worker, by the rank at the other end: rank 0 has one to everybody, everybody
/// else one to rank 0.
#[derive(Default)]
pub(super) struct Line(Vec<(usize, TcpStream)>);

/// Whether the other end is closed. Nothing is sent any more, so that whatever comes counts as such.
pub(super) fn closed(stream: &TcpStream) -> bool {
    let look = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0]));
    !look.is_err_and(|e| matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted))
}

impl Line {
    pub(super) fn new(connections: impl Iterator<Item = (usize, TcpStream)>) -> Line {
        Line(connections.collect())
    }

    /// The first rank whose connection is closed.
    pub fn closed(&self) -> Option<usize> {
        self.0.iter().find(|(_, stream)| closed(stream)).map(|(rank, _)| *rank)
    }
}
