//! Escaped output to standard output and standard error.

use phalanx::text::{escape, is_hidden};
use std::io::{self, StdoutLock, Write};

/// A writer that escapes control and other invisible characters except newlines and tabs. Names of files and models
/// cannot inject terminal sequences, even if a caller forgets to escape them.
pub struct Escaping<W>(pub W);

/// Standard output for text. JSON and CSV escape their own strings.
pub fn stdout() -> Escaping<StdoutLock<'static>> {
    Escaping(io::stdout().lock())
}

impl<W: Write> Write for Escaping<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let unsafe_char = |c: char| is_hidden(c) && !matches!(c, '\n' | '\t');
        if !text.contains(unsafe_char) {
            self.0.write_all(text.as_bytes())?;
            return Ok(bytes.len());
        }
        for part in text.split_inclusive(['\n', '\t']) {
            let (end, rest) = match part.chars().next_back().filter(|c| matches!(c, '\n' | '\t')) {
                Some(last) => (last.to_string(), &part[..part.len() - 1]),
                None => (String::new(), part),
            };
            self.0.write_all(escape(rest).as_bytes())?;
            self.0.write_all(end.as_bytes())?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_writer_escapes_all_but_newlines_and_tabs() {
        let written = |text: &str| {
            let mut out = vec![];
            write!(Escaping(&mut out), "{text}").unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(written("a\tb\né 猫\n"), "a\tb\né 猫\n");
        assert_eq!(
            written("\u{1b}[2J\n\u{202e}x\r\ty\u{9b}"),
            "\\u{1b}[2J\n\\u{202e}x\\r\ty\\u{9b}"
        );
        let mut out = vec![];
        Escaping(&mut out).write_all(b"\xff\x1b").unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "\u{fffd}\\u{1b}");
    }
}
