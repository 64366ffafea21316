//! The open connections of a worker. A closed one identifies a lost worker.

use std::io::ErrorKind;
use std::net::TcpStream;

/// The connections of a worker with the rank at the other end. Rank 0 is connected to every worker, every other
/// worker only to rank 0.
#[derive(Default)]
pub(super) struct Connections(Vec<(usize, TcpStream)>);

/// Whether the other end is closed. Nothing is sent after the handshake, so any received data counts as closed
/// too.
pub(super) fn is_closed(stream: &TcpStream) -> bool {
    let peeked = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0]));
    !peeked.is_err_and(|e| matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted))
}

impl Connections {
    pub(super) fn new(connections: impl Iterator<Item = (usize, TcpStream)>) -> Connections {
        Connections(connections.collect())
    }

    /// The lowest rank whose connection is closed, if any.
    pub fn first_closed(&self) -> Option<usize> {
        self.0.iter().find(|(_, stream)| is_closed(stream)).map(|(rank, _)| *rank)
    }
}
